"""``podwright capacity`` against the emulated AWS, and runs that are held against the hours of training plans."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwright.aws_session import Session
from podwright.check.account import Account
from podwright.check.findings import Finding
from podwright.check.load import load_run_or_job
from podwright.check.plan_hours import hours_left, shortfall
from podwright.check.rules import apply_live, live_plans
from podwright.checkout import ROOT
from podwright.cli import main
from podwright.errors import OperationError
from podwright.operations.account import hyperpod
from podwright.operations.jobs import preflight
from podwright.planning.run_hours import run_hours
from podwright.settings.root import Settings
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.identity import DEFAULT_ACCOUNT_ID
from podwright_rehearsal.aws.inventory import PRINCIPALS_PATH
from podwright_testing.documents import as_described
from podwright_testing.hyperpod import ClusterMaker

P5 = "ml.p5.48xlarge"
GB200 = "ml.p6e-gb200.36xlarge"
HERE = "us-west-2"


@pytest.fixture
def run_file(folder: Path) -> Path:
    """Write a run of some hours, and return its file."""
    file = folder / "run.yaml"
    file.write_text("preset: llama3_1_8b\nmax_steps: 20000\ntrain_batch_size: 1\n", encoding="utf-8")
    return file


def write_settings(folder: Path, **changes: Any) -> Path:
    """Write cluster.yaml with nodes that training plans reserve; ``changes`` are of their group."""
    data = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    for group in data["cluster"]["instance_groups"]:
        if group["role"] == "compute":
            group.update(instance_type=P5, count=4, **changes)
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return file


def bought(aws: AwsStandIn, name: str, hours: int, *, nodes: int = 4, **search: Any) -> str:
    """Buy a training plan that starts now, and return its ARN."""
    sagemaker = aws.client("sagemaker")
    wanted = {"InstanceType": P5, "InstanceCount": nodes, "TargetResources": ["hyperpod-cluster"], **search}
    (offering,) = sagemaker.search_training_plan_offerings(**wanted, DurationHours=hours)["TrainingPlanOfferings"]
    offering_id = offering["TrainingPlanOfferingId"]
    plan = sagemaker.create_training_plan(TrainingPlanName=name, TrainingPlanOfferingId=offering_id)
    return str(plan["TrainingPlanArn"])


def document(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    """Return what ``podwright capacity --json`` prints."""
    assert main(["capacity", "--json", *arguments]) == status
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    as_described(printed)
    return printed


def test_offerings_of_a_file_have_price_move_and_time(
    folder: Path, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search is for the file's nodes and whole days of the run; an offering of another zone has its move."""
    write_settings(folder)
    (offering,) = document(capsys, "--run", str(run_file))["offerings"]
    assert (offering["instance_type"], offering["nodes"], offering["region"]) == (P5, 4, HERE)
    assert 0 < offering["run_hours"] <= offering["hours"]
    assert offering["hours"] % 24 == 0
    assert offering["hours"] - offering["run_hours"] < 24
    assert offering["run_ends_in_time"] is True
    assert offering["fee_per_node_hour"] == offering["upfront_fee"] / 4 / offering["hours"]
    assert offering["list_usd_per_node_hour"] > 1
    assert offering["zone_ids"] == ["usw2-az2"]  # the file has usw2-az1
    assert offering["move"]["command"] == "podwright move --zone usw2-az2 --training-plan ARN"
    assert offering["move"]["data_gib"] >= 1200
    assert offering["move"]["transfer_usd_at_most"] == 0
    assert f"--training-plan-offering-id {offering['id']}" in offering["buy"]


def test_the_printed_command_buys(aws: AwsStandIn, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Searching buys nothing; the words of the printed command are a valid call that does."""
    write_settings(folder)
    (offering,) = document(capsys)["offerings"]
    words = offering["buy"].split()
    assert words[:3] == ["aws", "sagemaker", "create-training-plan"]
    values = dict(zip(words[3::2], words[4::2], strict=True))
    sagemaker, name = aws.client("sagemaker"), values["--training-plan-name"]
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_training_plan(TrainingPlanName=name)
    offering_id = values["--training-plan-offering-id"]
    sagemaker.create_training_plan(TrainingPlanName=name, TrainingPlanOfferingId=offering_id)
    assert sagemaker.describe_training_plan(TrainingPlanName=name)["TotalInstanceCount"] == 4


def test_names_of_plans_are_as_long_as_aws_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster's name may have 63 characters, a plan's 64 with the end that differs."""
    file = write_settings(folder)
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "name": "c" * 63}), encoding="utf-8")
    (offering,) = document(capsys)["offerings"]
    words = offering["buy"].split()
    assert len(words[words.index("--training-plan-name") + 1]) == 64


def test_the_account_of_the_deployer_s_role_is_asked(
    aws: AwsStandIn, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Capacity and teardown call AWS as the role that the settings name, which here may do nothing else."""
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": DEFAULT_ACCOUNT_ID}}
    trusting = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = aws.client("iam").create_role(RoleName="idle", Path=PRINCIPALS_PATH, AssumeRolePolicyDocument=trusting)
    file = write_settings(folder)
    settings = {**yaml.safe_load(file.read_text()), "assume_role": {"role_arn": role["Role"]["Arn"]}}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["capacity", str(file), "--json"]) == 3
    assert "to arn:aws:sts::123456789012:assumed-role/idle/podwright" in capsys.readouterr().err
    main(["teardown", "--json"])
    assert "idle/podwright" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("folder")
def test_types_and_durations_are_combined(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file, each type is searched for each duration; without types all that AWS reserves are."""
    flags = ["--instance", P5, "--instance", "ml.p4d.24xlarge", "--duration", "7d", "--duration", "36h", "--nodes", "2"]
    offerings = document(capsys, *flags, "--region", HERE)["offerings"]
    found = {(item["instance_type"], item["hours"], item["nodes"], item["move"]) for item in offerings}
    assert found == {(name, hours, 2, None) for name in (P5, "ml.p4d.24xlarge") for hours in (168, 36)}
    everything = document(capsys, "--region", HERE)["offerings"]
    assert len({item["instance_type"] for item in everything}) == 11
    (parts,) = [item for item in everything if item["instance_type"] == GB200]
    assert (parts["nodes"], parts["ultraserver_type"]) == (9, "ml.u-p6e-gb200x36")
    wide = document(capsys, "--instance", GB200, "--nodes", "18", "--region", HERE)["offerings"]
    assert sorted(item["ultraserver_type"] for item in wide) == ["ml.u-p6e-gb200x36", "ml.u-p6e-gb200x72"]


@pytest.mark.usefixtures("folder")
def test_zones_and_dates_limit_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    """Other zones are left out; without an offering the status is 1, and the text says what to change."""
    flags = ["--instance", P5, "--region", HERE]
    assert document(capsys, *flags, "--zone", "usw2-az2")["offerings"]
    assert not document(capsys, *flags, "--zone", "usw2-az3", status=1)["offerings"]
    (later,) = document(capsys, *flags, "--after", "2040-01-31")["offerings"]
    assert later["starts_at"] == "2040-01-31T00:00:00+00:00"
    assert main(["capacity", *flags, "--before", "2020-01-31"]) == 1
    assert "AWS offers no training plan: try other --instance" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_a_region_that_refuses_does_not_end_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with AWS's reason; if every region refuses, the command fails with the first one's."""
    flags = ["--instance", P5, "--region", "eu-north-1"]
    result = document(capsys, *flags, "--region", HERE)
    assert len(result["offerings"]) == 1
    assert result["not_searched"][0].startswith(f"1 x {P5} in eu-north-1 for 168 h: ")
    assert main(["capacity", *flags]) in {1, 3}
    assert capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--instance", "ml.g5.12xlarge"], "--instance: AWS sells no training plans of ml.g5.12xlarge"),
        (["--instance", GB200, "--nodes", "4"], f"--nodes: got 4 of {GB200}, need a multiple of 9"),
        (["--duration", "14"], "--duration: '14' has no unit"),
        (["--duration", "9000d"], "--duration: got 9000d, AWS searches for at most 3650 days"),
        (["--region", "here"], "--region: got here, need a region such as us-west-2"),
    ],
)
def test_wrong_arguments_are_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each message says what was given, and what is allowed."""
    assert main(["capacity", *([] if "--region" in flags else ["--region", HERE]), *flags]) == 2
    assert message in capsys.readouterr().err


def test_extensions_of_the_file_s_plans(aws: AwsStandIn, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has the command that buys it; the plan then ends later by whole days."""
    arn = bought(aws, "extended", 48)
    write_settings(folder, training_plan_arn=arn)
    (extension,) = document(capsys, "--duration", "30h")["extensions"]
    sagemaker = aws.client("sagemaker")
    end = sagemaker.describe_training_plan(TrainingPlanName=arn)["EndTime"]
    assert (extension["training_plan_arn"], extension["hours"]) == (arn, 48)
    assert datetime.fromisoformat(extension["starts_at"]) == end.replace(microsecond=0)
    *_, flag, offering_id = extension["buy"].split()
    assert flag == "--training-plan-extension-offering-id"
    sagemaker.extend_training_plan(TrainingPlanExtensionOfferingId=offering_id)
    later = sagemaker.describe_training_plan(TrainingPlanName=arn)["EndTime"]
    assert later - end == timedelta(hours=48)
    assert main(["capacity", "--duration", "2d"]) == 0
    assert "extend extended by 48 h to " in capsys.readouterr().out


def test_the_text_has_a_row_and_a_command_for_each(
    folder: Path, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table names zone, hours, prices, run and move; below it are the commands to buy and to go on with."""
    write_settings(folder)
    assert main(["capacity", "--run", str(run_file), "--duration", "1h"]) == 0
    text = capsys.readouterr().out
    for words in ("us-west-2 usw2-az2", ", too long", "1. buy: aws sagemaker create-training-plan --region us-west-2"):
        assert words in text
    assert "then: podwright move --zone usw2-az2 --training-plan ARN  # 1200 GiB" in text


# ---- the hours of plans ---------------------------------------------------------------------------


def live_findings(file: Path, run_file: Path | None = None) -> Iterator[Finding]:
    """Return the findings about training plans of ``check --live --run``."""
    settings = Settings.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    training_run = load_run_or_job(run_file) if run_file else None
    codes = {"training-plans", "run-within-plan"}
    found = apply_live(settings, Account(Session(region=HERE)), training_run)
    return (finding for finding in found if finding.code in codes)


def test_check_compares_a_run_with_what_is_left_of_the_plan(aws: AwsStandIn, folder: Path, run_file: Path) -> None:
    """A run that takes longer than the plan is a warning at its ARN; one that ends before it is none."""
    hours = run_hours(load_run_or_job(run_file), P5, 4, HERE).hours
    assert hours
    for name, plan_hours, count in (("short", int(hours) // 2, 1), ("long", int(hours) + 24, 0)):
        file = write_settings(folder, training_plan_arn=bought(aws, name, plan_hours))
        findings = list(live_findings(file, run_file))
        assert len(findings) == count
        assert not list(live_findings(file))
        for finding in findings:
            assert (finding.code, finding.path[-1], finding.level.value) == (
                "run-within-plan",
                "training_plan_arn",
                "warning",
            )
            assert "training plan short has " in finding.message
            assert "`podwright capacity` lists extensions" in finding.hint


def test_check_asks_whether_plans_fit_their_groups(aws: AwsStandIn, folder: Path) -> None:
    """A missing plan, one of another type and one with fewer nodes are found."""
    absent = f"{bought(aws, 'exists', 48)}-not"
    other_type = bought(aws, "other-type", 48, InstanceType="ml.p4d.24xlarge")
    elsewhere = bought(aws, "for-jobs", 48, TargetResources=["training-job"])
    cases = {
        absent: "there is no such plan",
        other_type: f"reserves ml.p4d.24xlarge, the group has {P5}",
        elsewhere: "the plan is for training-job, not for hyperpod-cluster",
        bought(aws, "small", 48, nodes=2): "the plan reserves 2 nodes, its groups have 4",
    }
    for arn, message in cases.items():
        (finding,) = live_findings(write_settings(folder, training_plan_arn=arn))
        assert message in finding.message


def test_hours_left_of_a_plan() -> None:
    """They count from now or the plan's start; of a plan in parts, the gaps between these do not count."""
    now = datetime(2027, 1, 1, tzinfo=timezone.utc)
    day = timedelta(days=1)
    plan = {"TrainingPlanName": "p", "StartTime": now - day, "EndTime": now + 3 * day}
    parts = [{"StartTime": now - day, "EndTime": now + day}, {"StartTime": now + 2 * day, "EndTime": now + 3 * day}]
    assert hours_left(plan, now) == 72
    assert hours_left({**plan, "StartTime": now + day}, now) == 48
    assert hours_left({**plan, "ReservedCapacitySummaries": parts}, now) == 48
    assert hours_left(plan, now + 4 * day) == 0
    assert shortfall(plan, 72, now=now) == ""
    assert shortfall(plan, 73, now=now).endswith("has 3 days left: AWS takes its nodes back at 2027-01-04 00:00 UTC")
    assert shortfall({"TrainingPlanName": "p"}, 73, now=now) == ""
    assert live_plans._problem({"Status": "Expired"}, P5) == "the plan is Expired"


def test_submit_compares_the_run_with_the_plan(aws: AwsStandIn, run_file: Path, maker: ClusterMaker) -> None:
    """The arguments of the command count; without a plan of its nodes nothing is asked, and a refusal is a line."""
    arn = bought(aws, "submitted", 1)
    maker.make("submitted", workers_have={"InstanceType": P5, "TrainingPlanArn": arn})
    groups = hyperpod.find(Session(region=HERE), "submitted").groups

    def lines(session: Session | None = None, *arguments: str, groups: Any = groups) -> list[str]:
        options = argparse.Namespace(file=run_file, nodes="2-4", partition=None, arguments=list(arguments))
        session = session or Session(region=HERE)
        training_run = lambda: preflight.run_with_arguments(options)  # noqa: E731
        return list(preflight.plan_shortfalls(options, training_run, groups, session))

    (line,) = lines()
    assert line.startswith("the run takes ")
    assert "training plan submitted has " in line
    assert lines(None, "--max-steps=1") == []
    assert lines(None, groups=[replace(group, training_plan_arn="") for group in groups]) == []
    gone = [replace(group, training_plan_arn=f"{arn}-not" if group.training_plan_arn else "") for group in groups]
    (refusal,) = lines(None, groups=gone)
    assert refusal.startswith("the run's time was not compared with the plan of workers: ")
    with pytest.raises(OperationError):
        Session(region=HERE).call("sagemaker", "describe_training_plan", TrainingPlanName=f"{arn}-not")
