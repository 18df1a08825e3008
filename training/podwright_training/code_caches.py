"""Keep compiled code where only its user can write: a cache that somebody else has prepared runs as its reader.

PyTorch and Neuron take theirs from names in /tmp and /var/tmp that everybody can guess, and make first.
``python -m podwright_training.code_caches`` prints the variables for a shell that starts another program.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from podwright_training.errors import UserError, report
from podwright_training.private_folder import make_private, why_not_private, why_not_trusted

# Variables of caches that are in /tmp or /var/tmp by default, and what we name their folders.
# https://docs.pytorch.org/docs/stable/torch.compiler_inductor_profiling.html,
# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/reference/env-vars.html
SHARED_BY_DEFAULT = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",  # It has Triton's kernels too.
    "NEURON_COMPILE_CACHE_URL": "neuron",
    "TORCH_NEURONX_NEFF_CACHE_DIR": "neff",
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "neff-local",
    "TORCH_NEURONX_HLO_CACHE_DIR": "hlo",
    "TORCH_NEURONX_DEBUG_DIR": "neuron-debug",
}
TEMPORARY = "TMPDIR"  # PyTorch keeps compiled headers and more below it, even if TORCHINDUCTOR_CACHE_DIR is set.
IN_HOME_BY_DEFAULT = ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH")

_LOCK_DESCRIPTORS: list[int] = []  # open until this process ends


def private_caches(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process lacks; their folders are its user's alone.

    Args:
        variables: The process's own. A cache that they name stays.

    Raises:
        UserError: They name folders that others can write to; every one is in the message.
    """
    problems = [
        f"{name}: {problem}: code in it runs as you"
        for name in (*SHARED_BY_DEFAULT, *IN_HOME_BY_DEFAULT)
        if (place := variables.get(name)) and "://" not in place
        if (problem := _why_not_usable(Path(place)))
    ]
    if problems:
        raise UserError("\n".join(problems))
    missing = {name: folder for name, folder in SHARED_BY_DEFAULT.items() if not variables.get(name)}
    if why_not_private(Path(tempfile.gettempdir())):
        missing[TEMPORARY] = "tmp"
    if not missing:
        return {}
    root = _root()
    for folder in missing.values():
        make_private(root / folder)
    return {name: str(root / folder) for name, folder in missing.items()}


def use_private_caches() -> None:
    """Set the variables of this process, before it imports torch.

    Raises:
        UserError: As ``private_caches``.
    """
    os.environ |= private_caches(os.environ)
    tempfile.tempdir = None  # Python has looked it up before


@contextmanager
def private_caches_in_use() -> Iterator[None]:
    """Set the variables of this process while a command runs, which imports torch, and restore them at its end.

    Raises:
        UserError: As ``private_caches``.
    """
    before = {name: os.environ.get(name) for name in (*SHARED_BY_DEFAULT, TEMPORARY)}
    use_private_caches()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None


def _why_not_usable(place: Path) -> str:
    """Make a folder that the variables name, before another user does; return why it cannot be trusted, or nothing."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{place}: {error.strerror}"
    return why_not_trusted(place)


def _root() -> Path:
    """Return the folder of a user's caches on this host; if somebody else has taken its name, another one.

    systemd-tmpfiles removes old files of /tmp, and whoever is first could then make the folder anew; it leaves alone
    what a process has locked. https://www.freedesktop.org/software/systemd/man/latest/tmpfiles.d.html
    """
    root = Path(tempfile.gettempdir()) / f"podwright-{os.geteuid()}"
    try:
        make_private(root)
    except UserError as error:
        root = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))
        make_private(root)
        line = f"{error}; until then compiled code is in {root}, and each start compiles anew"
        report(UserError(line), level="warning")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks, which systemd does not tidy either
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    _LOCK_DESCRIPTORS.append(descriptor)
    return root


def main() -> int:
    """Print a shell's lines that set the variables; return the exit status."""
    try:
        variables = private_caches(os.environ)
    except UserError as error:
        report(error)
        return 2
    lines = [f"export {name}={shlex.quote(place)}" for name, place in variables.items()]
    if variables:  # the shell and what it starts hold the lock, as this process ends
        root = Path(next(iter(variables.values()))).parent
        lines.append(f"exec {{caches}}<{shlex.quote(str(root))}; flock --shared $caches || true")
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
