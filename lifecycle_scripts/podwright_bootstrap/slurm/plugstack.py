"""The SPANK plugins that Slurm loads: ``plugstack.conf`` and the files it includes.

https://slurm.schedmd.com/spank.html#SECTION_CONFIGURATION
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.slurm import slurm_conf

PLUGSTACK = contract.SLURM_ROOT / "etc" / "plugstack.conf"
PLUGIN_NAME = "spank_pyxis.so"
# Where images and Pyxis's own Makefile put it.
FOLDERS = (contract.SLURM_ROOT / "lib" / "slurm", Path("/usr/local/lib/slurm"), Path("/usr/lib/slurm"))

Line = Tuple[Path, str]


def find_pyxis() -> Path | None:
    """The plugin that is on this node."""
    candidates = (folder / PLUGIN_NAME for folder in FOLDERS)
    return next((path for path in candidates if path.is_file()), None)


def load_once(plugin: Path) -> Iterator[str]:
    """Let exactly one line load Pyxis, from an existing path.

    Twice, srun would refuse its options as defined twice. An image that ships Pyxis may load it by an include already.
    """
    loading = [(file, line) for file, line in _lines(PLUGSTACK) if _loads(line)]
    if len(loading) == 1 and Path(loading[0][1].split()[1]).is_file():
        return
    line_to_keep = next((line for _, line in loading if Path(line.split()[1]).is_file()), f"required {plugin}")
    for file in {file for file, _ in loading} - {PLUGSTACK}:
        slurm_conf.write(file, _without(file))
    slurm_conf.write(PLUGSTACK, f"{_without(PLUGSTACK)}{line_to_keep}\n")
    yield f"{PLUGSTACK} loads Pyxis once, not {len(loading)} times"


def _lines(file: Path) -> Iterator[Line]:
    """Return the lines of a file and of the files that it includes."""
    for line in file.read_text().splitlines() if file.exists() else []:
        words = line.split()
        if words[:1] == ["include"]:
            pattern = Path(words[1]) if Path(words[1]).is_absolute() else file.parent / words[1]
            for included in sorted(pattern.parent.glob(pattern.name)):
                yield from _lines(included)
        else:
            yield file, line


def _loads(line: str) -> bool:
    """Return whether a line, ``required PATH …`` or ``optional PATH …``, loads Pyxis."""
    words = line.split()
    return len(words) > 1 and not words[0].startswith("#") and words[1].endswith(PLUGIN_NAME)


def _without(file: Path) -> str:
    """Return a file's text without the lines that load Pyxis."""
    lines = file.read_text().splitlines() if file.exists() else []
    return "".join(f"{line}\n" for line in lines if not _loads(line))
