"""Paths that AWS's stock image for HyperPod lacks and a Debian root has, by what they belong to.

https://github.com/aws-samples/awsome-distributed-training notes that `python3 -m venv` is not preinstalled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LACKS: Mapping[str, Sequence[str]] = {
    "python3-venv": ("/usr/lib/python3*/ensurepip",),
    "pip": ("/usr/bin/pip*", "/usr/lib/python3/dist-packages/pip", "/usr/lib/python3/dist-packages/pip-*"),
    "pam_slurm_adopt": ("/usr/lib/*/security/pam_slurm_adopt.so",),
}
STOCK = tuple(pattern for patterns in LACKS.values() for pattern in patterns)
