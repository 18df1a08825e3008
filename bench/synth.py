"""Time the synthesis of the production example, beside the same resources on the prebuilt bindings.

    python bench/synth.py [--rounds 3]

Smallest: python bench/synth.py --rounds 1

They take turns. podwright's side is the whole of it: settings, rules, constructs, scripts, both stacks; the other
side is a program that only makes the same resources, as `cdktf` users write it. Beside them an app of one empty stack:
what CDKTF itself takes, to start Node and to load its library. Memory is the peak of Python and of the Node processes
below it. The prebuilt package (some 250 MB) is installed once, into .cache/prebuilt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]  # the other side, without podwright, runs this file too
EXAMPLE = CHECKOUT / "examples" / "production" / "cluster.yaml"
PREBUILT = CHECKOUT / ".cache" / "prebuilt"
PACKAGES = ("cdktf==0.21.0", "cdktf-cdktf-provider-aws==21.22.1")
WARNINGS = {f"JSII_SILENCE_WARNING_{word}_NODE_VERSION": "18,20,22" for word in ("DEPRECATED", "END_OF_LIFE")}


class Run(NamedTuple):
    """One synthesis: seconds, peak MiB of all its processes, and how many resources it wrote."""

    wall_s: float
    peak_mib: float
    resources: int


def main() -> None:
    """Print both sides and their ratios."""
    parser = argparse.ArgumentParser(description="Compare synthesis on thin and on prebuilt bindings.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not PREBUILT.exists():
        _install()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, empty = (Path(folder, name) for name in ("ours", "prebuilt", "empty"))
        sides: dict[str, Callable[[], Run]] = {
            "podwright": lambda: _podwright(ours),
            "prebuilt bindings": lambda: _prebuilt(theirs, ours),
            "an empty app": lambda: _empty(empty),
        }
        for side in sides.values():
            side()  # for nothing: the training wheel is built and kept, modules are compiled
        taken = [{name: side() for name, side in sides.items()} for _ in range(rounds)]
    medians = {name: Run(*map(statistics.median, zip(*(each[name] for each in taken), strict=True))) for name in sides}
    print(f"{'median of ' + str(rounds):22} {'wall s':>8} {'peak MiB':>9} {'resources':>10}")
    for name, run in medians.items():
        print(f"{name:22} {run.wall_s:8.2f} {run.peak_mib:9.0f} {run.resources:10.0f}")
    thin, heavy, least = medians.values()
    print(f"{'ratio':22} {heavy.wall_s / thin.wall_s:8.1f} {heavy.peak_mib / thin.peak_mib:9.1f}")
    beyond = (heavy.wall_s - least.wall_s) / (thin.wall_s - least.wall_s)
    print(f"{'beyond the empty app':22} {beyond:8.1f}")


def _install() -> None:
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(PREBUILT)], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(PREBUILT / "bin" / "python"), *PACKAGES], check=True)


def _podwright(folder: Path) -> Run:
    """Run main.py as ``cdktf synth`` does."""
    return _measured([sys.executable, str(CHECKOUT / "main.py")], folder, {"PODWRIGHT_CONFIG": str(EXAMPLE)})


def _prebuilt(folder: Path, ours: Path) -> Run:
    python = str(PREBUILT / "bin" / "python")
    return _measured([python, "-c", f"import runpy; runpy.run_path({__file__!r})['rebuild']()"], folder, _stacks(ours))


def _empty(folder: Path) -> Run:
    program = "from cdktf import App, TerraformStack; app = App(); TerraformStack(app, 'empty'); app.synth()"
    return _measured([sys.executable, "-c", program], folder, {})


def _stacks(folder: Path) -> dict[str, str]:
    return {"STACKS": os.pathsep.join(map(str, sorted(folder.glob("cdktf.out/stacks/*/cdk.tf.json"))))}


def _measured(command: list[str], folder: Path, variables: Mapping[str, str]) -> Run:
    """Run a program in a folder and read its processes' peak memory while they run."""
    folder.mkdir(exist_ok=True)
    start, peaks = time.monotonic(), dict[int, int]()
    environment = {**os.environ, **WARNINGS, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # both sides find their modules compiled
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        while process.poll() is None:
            for pid in _family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), _peak_kib(pid))
            time.sleep(0.02)
        wall_s = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    written = [json.loads(Path(file).read_text("utf-8")) for file in _stacks(folder)["STACKS"].split(os.pathsep)]
    blocks = [len(by_name) for stack in written for by_name in stack.get("resource", {}).values()]
    return Run(wall_s, sum(peaks.values()) / 1024, sum(blocks))


def _family(pid: int) -> Iterator[int]:
    """Return the process and its running descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has ended
        return
    for child in children:
        yield from _family(int(child))


def _peak_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


# ---- the other side: run by the Python of .cache/prebuilt --------------------------------------


def rebuild() -> None:
    """Make the resources of some stacks with the prebuilt classes."""
    from cdktf import App, DataResource, TerraformStack
    from cdktf_cdktf_provider_aws.provider import AwsProvider

    app = App()
    for file in os.environ["STACKS"].split(os.pathsep):
        source = json.loads(Path(file).read_text("utf-8"))
        stack = TerraformStack(app, Path(file).parent.name)
        AwsProvider(stack, "aws", region=source["provider"]["aws"][0]["region"])
        for kind, prefix in (("resource", ""), ("data", "data_")):
            for type_, by_name in source.get(kind, {}).items():
                for name, block in by_name.items():
                    if type_ == "terraform_data":
                        DataResource(stack, name, input={"value": block["input"]})
                    elif type_ != "terraform_remote_state":
                        _make(stack, prefix + type_, name, block)
    app.synth()


def _make(stack: Any, type_: str, name: str, block: Mapping[str, Any]) -> None:
    """Add one resource to the stack: ``aws_vpc`` is class Vpc of module vpc."""
    import importlib

    module_name = type_.removeprefix("aws_")
    module = importlib.import_module(f"cdktf_cdktf_provider_aws.{module_name}")
    class_name = _camel(module_name)
    values = {key: value for key, value in block.items() if key not in {"//", "depends_on", "lifecycle", "provider"}}
    arguments = {key: _argument(module, class_name, key, value) for key, value in values.items()}
    _named(module, class_name)(stack, name, **arguments)


def _argument(module: Any, owner: str, key: str, value: Any) -> Any:
    """Return a nested block as an instance of its class, named after its owner and itself."""
    class_name = owner + _camel(key)
    known = getattr(module, class_name, None)
    if known is None:
        return value
    if isinstance(value, list):
        return [_argument(module, owner, key, item) for item in value]
    if not isinstance(value, dict):
        return value
    return known(**{inner: _argument(module, class_name, inner, item) for inner, item in value.items()})


def _named(module: Any, class_name: str) -> Any:
    """Return the class, whose name ends with A where the bindings have another of that name."""
    return getattr(module, class_name, None) or getattr(module, f"{class_name}A")


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


if __name__ == "__main__":
    main()
