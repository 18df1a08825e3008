"""Scripts of the cluster's owner that boots run: files that are uploaded under the name of their SHA-256.

``provisioning_parameters.json`` has the hash of each script, which nodes verify.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from podwright_constructs.problems import Problem

MAX_HOOK_BYTES = 1 << 20


def hook_problems(hooks: Mapping[str, Path]) -> Iterator[Problem]:
    """Report scripts, by the name that the settings give them, that a node could not run."""
    for script, file in hooks.items():
        if not file.is_file():
            yield Problem("missing", ("script",), script, f"a file; {file} does not exist")
            continue
        content = file.read_bytes()
        if not content.startswith(b"#!/"):
            hint = "Linux starts a script by its first line."
            yield Problem("malformed", ("script",), script, "a script whose first line begins with #!/", hint)
        elif b"\r" in content.splitlines(keepends=True)[0]:
            hint = "Linux does not find an interpreter whose name ends in a carriage return."
            yield Problem("malformed", ("script",), script, "Unix line endings", hint)
        if len(content) > MAX_HOOK_BYTES:
            hint = "Put data into the bucket, and let the script fetch it."
            yield Problem("malformed", ("script",), script, f"at most {MAX_HOOK_BYTES >> 20} MiB", hint)
