"""Processes that spare garbage collections: in processes of their own, because frozen objects stay."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import gc
from podwright_common.garbage import lasting_imports
before = gc.get_freeze_count()
with lasting_imports():
    assert not gc.isenabled()
    import decimal
assert gc.isenabled()
assert gc.get_freeze_count() > before
try:
    with lasting_imports():
        import no_such_module
except ModuleNotFoundError:
    assert gc.isenabled()
"""
END = """
import atexit, sys
from podwright_common.garbage import skip_last_collections
class Item:
    def __del__(self): print("collected")
skip_last_collections()
atexit.register(print, "ended in order")
def make():
    item = Item()
    item.itself = item
make()
sys.stdout.write("printed, ")
sys.exit(3)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_imports_are_left_out_of_collections() -> None:
    """Imported modules are frozen; collections go on after the import, and after one that failed."""
    done = run(IMPORT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_ends_without_a_collection() -> None:
    """Output is flushed, other exit functions run, the status stays, and no cycle is collected."""
    done = run(END)
    assert (done.returncode, done.stdout, done.stderr) == (3, "printed, ended in order\n", "")
