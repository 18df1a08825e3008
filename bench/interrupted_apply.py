"""Deploy an example again and again, each time interrupted at another call; a table of what the next run makes of it.

    python bench/interrupted_apply.py --kind refused --every 8
    python bench/interrupted_apply.py --kind killed --calls 19 38 65

Smallest: python bench/interrupted_apply.py --calls 5

A row is a fresh account of the AWS stand-in: the first deployment is interrupted at its n-th changing call, the second
goes on from there, a plan follows, and a destroy. "orphans" are resources in no state after the interruption, "left"
those after the destroy. After a kill, `podwright adopt --apply` comes between; "adopt" is how much
it adopted. All calls take two hours.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright.checkout import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from podwright.check.load import load
from podwright.operations.deployment.terraform import TerraformError
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.interruption import KINDS, Kind
from podwright_testing.workspace import ALL_AT_ONCE, STACKS, Workspace

KILLED: Literal["killed"] = "killed"
MINIMAL = ROOT / "examples" / "minimal" / "cluster.yaml"
POLL_S = 0.02
ERROR_CODE = r"RequestID: [^,]*, (?:HostID: [^,]*, )?(?:api error )?([\w.]+)"  # as AWS's SDK for Go writes it


@dataclass(frozen=True)
class Row:
    """One interrupted deployment; texts as they are printed, ``-`` for nothing."""

    at: int
    call: str
    first: str
    orphans: str
    adopted: str
    second: str
    plan: str
    destroy: str
    left: str


def main() -> None:
    """Run the campaign and print its table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=MINIMAL, help="with local state (default: the minimal example)")
    parser.add_argument("--kind", choices=(*KINDS, KILLED), default=KINDS[0])
    parser.add_argument("--calls", type=int, nargs="+", help="numbers of calls (default: all)")
    parser.add_argument("--every", type=int, default=1, help="without --calls: every so many")
    arguments = parser.parse_args()
    print("| n | call | interrupted run | orphans | adopt | next run | plan | destroy | left |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for at in arguments.calls or numbers(arguments.config, arguments.every):
        row = interrupted(arguments.config, at=at, kind=arguments.kind)
        print("|", " | ".join(str(value) for value in vars(row).values()), "|", flush=True)


def numbers(config: Path, every: int) -> Iterable[int]:
    """The numbers of all changing calls of an undisturbed deployment, or every so many of them."""
    with tempfile.TemporaryDirectory() as folder, account(config, Path(folder)) as aws:
        with Workspace(config=config, folder=Path(folder) / "stacks", aws=aws).synthesized() as workspace:
            workspace.deploy()
        return range(1, len(aws.changing_calls()) + 1, every)


def interrupted(config: Path, *, at: int, kind: Kind | Literal["killed"]) -> Row:
    """One deployment in an account of its own, interrupted at its changing call of number ``at``."""
    with (
        tempfile.TemporaryDirectory() as folder,
        account(config, Path(folder)) as aws,
        Workspace(config=config, folder=Path(folder) / "stacks", aws=aws).synthesized() as workspace,
    ):
        if kind == KILLED:
            first = killed(workspace, aws, at=at)
        else:
            aws.interrupt(at=at, kind=kind)
            first = outcome(workspace.deploy)
        seen, orphans = aws.changing_calls(), workspace.orphans()
        adopted = adopt(workspace) if kind == KILLED else "-"
        second = outcome(workspace.deploy)
        plan = "no changes" if second == "done" and not workspace.changes() else "changes"
        ended = outcome(workspace.destroy)
        return Row(
            at=at,
            call=re.sub(r"/sagemaker-\S*?(?=[/?]|$)", "/BUCKET", seen[at - 1]) if at <= len(seen) else "-",
            first=first,
            orphans="<br>".join(orphans) or "-",
            adopted=adopted,
            second=second,
            plan=plan,
            destroy=ended,
            left="<br>".join(aws.inventory()) or "-",
        )


def account(config: Path, folder: Path) -> AwsStandIn:
    """A fresh account in the settings' region."""
    return AwsStandIn(directory=folder / "aws", region=load(config).region, transition_s=0.1, instant_deletion=True)


def outcome(run: Callable[[], None]) -> str:
    """Run it; "done" or the error codes that AWS gave."""
    try:
        run()
    except TerraformError as error:
        return ", ".join(sorted(set(re.findall(ERROR_CODE, str(error))))) or "failed"
    return "done"


def adopt(workspace: Workspace) -> str:
    """Adopt; how many."""
    try:
        return str(len(workspace.adopt("--apply").splitlines()))
    except TerraformError as error:
        return str(error).strip().splitlines()[-1]


def killed(workspace: Workspace, aws: AwsStandIn, *, at: int) -> str:
    """Deploy until the call of number ``at`` was made, then SIGKILL."""
    for stack in STACKS:
        log = workspace.folder / "killed.log"
        with workspace.started(stack, "apply", "-auto-approve", ALL_AT_ONCE, log=log) as exit_code:
            while exit_code() is None:
                if len(aws.changing_calls()) >= at:
                    return f"killed in {stack}"
                time.sleep(POLL_S)
    return "done before"


if __name__ == "__main__":
    main()
