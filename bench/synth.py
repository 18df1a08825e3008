"""Time the synthesis of an empty app, the production example, and files with many groups or users.

    python bench/synth.py [--rounds 3] [--prebuilt]

Smallest: python bench/synth.py --rounds 1 --cases production

The cases take turns. An app of one empty stack is what CDKTF itself takes, to start Node and to load its library; the
others are the whole of podwright's side: settings, rules, constructs, scripts, both stacks. Each ratio is one of
medians. CPU time is that of Python and of the Node processes below it, and does not depend on the neighbours as wall
time does; memory is the sum of their peaks. ``--prebuilt`` adds a program that only makes the example's resources on
the prebuilt bindings, as `cdktf` users write it, which takes longer than all cases together; the package (some 250 MB)
is installed once, into .cache/prebuilt.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]  # the other side, without podwright, runs this file too
EXAMPLE = CHECKOUT / "examples" / "production" / "cluster.yaml"
PREBUILT = CHECKOUT / ".cache" / "prebuilt"
PACKAGES = ("cdktf==0.21.0", "cdktf-cdktf-provider-aws==21.22.1")
EMPTY, PRODUCTION, PREBUILT_BINDINGS = "an empty app", "production", "prebuilt bindings"
CASES = (PRODUCTION, "20-groups", "98-groups", "1000-users")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARNINGS = {f"JSII_SILENCE_WARNING_{word}_NODE_VERSION": "18,20,22" for word in ("DEPRECATED", "END_OF_LIFE")}


class Run(NamedTuple):
    """One synthesis: wall and CPU seconds, peak MiB of all its processes, and how many resources it wrote."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    resources: int


def main() -> None:
    """Print the medians of each case, and their ratios to those of the empty app."""
    parser = argparse.ArgumentParser(description="Time synthesis.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--prebuilt", action="store_true", help="also make the example on the prebuilt bindings")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Run]] = {EMPTY: partial(_empty, Path(folder, "empty"))}
        for name in options.cases:
            file = Path(folder, f"{name}.yaml")
            file.write_text(_settings(name), encoding="utf-8")
            sides[name] = partial(_podwright, Path(folder, name), EXAMPLE if name == PRODUCTION else file)
        if options.prebuilt:
            if not PREBUILT.exists():
                _install()
            sides[PREBUILT_BINDINGS] = partial(_prebuilt, Path(folder, "prebuilt"), Path(folder, PRODUCTION))
        for name in (EMPTY, options.cases[0]):
            sides[name]()  # for nothing: the training wheel is built and kept, modules are compiled
        taken = [{name: side() for name, side in sides.items()} for _ in range(options.rounds)]
    medians = {name: Run(*map(statistics.median, zip(*(each[name] for each in taken), strict=True))) for name in sides}
    _print(medians, options.rounds)


def _print(medians: Mapping[str, Run], rounds: int) -> None:
    headings = f"{'wall s':>8} {'CPU s':>7} {'peak MiB':>9} {'resources':>10} {'CPU ratio':>10}"
    print(f"{'median of ' + str(rounds):22} {headings}")
    for name, run in medians.items():
        ratio = run.cpu_s / medians[EMPTY].cpu_s
        seconds = f"{run.wall_s:8.2f} {run.cpu_s:7.2f}"
        print(f"{name:22} {seconds} {run.peak_mib:9.0f} {run.resources:10.0f} {ratio:10.1f}")


def _settings(name: str) -> str:
    """Return the example with as many compute groups or users as the case has."""
    settings = yaml.safe_load(EXAMPLE.read_text("utf-8"))
    groups = settings["cluster"]["instance_groups"]
    number, _, kind = name.partition("-")
    if kind == "groups":
        more = {"role": "compute", "instance_type": "ml.c5.xlarge", "count": 1, "partition": "more"}
        groups += [{**more, "name": f"more-{n}"} for n in range(int(number) - len(groups))]
    if kind == "users":
        users = [{"name": f"user{n}", "uid": 10_000 + n} for n in range(int(number))]
        settings["nodes"]["users"] = users
    return str(yaml.safe_dump(settings))


def _install() -> None:
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(PREBUILT)], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(PREBUILT / "bin" / "python"), *PACKAGES], check=True)


def _podwright(folder: Path, settings_file: Path) -> Run:
    """Run main.py as ``cdktf synth`` does."""
    return _measured([sys.executable, str(CHECKOUT / "main.py")], folder, {"PODWRIGHT_CONFIG": str(settings_file)})


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
    start, peaks, ticks = time.monotonic(), dict[int, int](), dict[int, int]()
    environment = {**os.environ, **WARNINGS, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # both sides find their modules compiled
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        while process.poll() is None:
            for pid in _family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), _peak_kib(pid))
                ticks[pid] = max(ticks.get(pid, 0), _ticks(pid))
            time.sleep(0.02)
        wall_s = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    written = [json.loads(Path(file).read_text("utf-8")) for file in _stacks(folder)["STACKS"].split(os.pathsep)]
    blocks = [len(by_name) for stack in written for by_name in stack.get("resource", {}).values()]
    return Run(wall_s, sum(ticks.values()) / TICKS_PER_S, sum(peaks.values()) / 1024, sum(blocks))


def _family(pid: int) -> Iterator[int]:
    """Return the process and its running descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has ended
        return
    for child in children:
        yield from _family(int(child))


def _ticks(pid: int) -> int:
    """Return the CPU time of a process, user's and system's.

    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    except OSError:  # it has ended
        return 0
    return int(fields[11]) + int(fields[12])


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
