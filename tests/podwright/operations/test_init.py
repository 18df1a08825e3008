"""``podwright init``: its file passes ``podwright check``, wrong answers are named together, nothing is overwritten."""

# ruff: noqa: ARG001 -- the folder is the working directory

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from podwright import checkout
from podwright.check.load import load, load_run
from podwright.cli import main
from podwright.errors import OperationError
from podwright.operations.deployment.kit import Kit
from podwright.operations.settings_file.init import EXAMPLES, example_names
from podwright.operations.settings_file.schema import cluster_text
from podwright_testing.pages import blocks
from podwright_testing.terminal import Terminal

VPC = ["--vpc-id", "vpc-0a1b2c3d4e5f60718"]
SUBNET = ["--subnet-id", "subnet-0a1b2c3d4e5f60718", "--security-group-id", "sg-0a1b2c3d4e5f60718"]
NEW_SUBNET = ["--subnet-cidr", "10.0.16.0/20", "--nat-gateway-id", "nat-0a1b2c3d4e5f60718"]


def refused(capsys, *arguments: str) -> str:
    """Run an init that fails; return its one line."""
    assert main(["init", "--yes", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "source"),
    [([], "create"), ([*VPC, *NEW_SUBNET], "existing_vpc"), ([*VPC, *SUBNET], "existing")],
)
def test_each_network_passes_check(folder, capsys, arguments, source):
    """With defaults and each kind of network the file has no finding, and the folder can deploy."""
    assert main(["init", "--yes", *arguments]) == 0
    capsys.readouterr()
    assert main(["check", "--strict"]) == 0
    assert load(folder / "cluster.yaml").network.source == source
    kit = json.loads((folder / "cdktf.json").read_text())
    assert kit["app"].startswith(sys.executable)


def test_the_next_command_runs_in_this_folder(folder):
    """A settings file in another folder is deployed from here: cdktf.json is here."""
    assert main(["init", "--yes", "clusters/night.yaml"]) == 0
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "cdktf.json",
        "clusters/.podwright/cluster.schema.json",
        "clusters/night.yaml",
    ]


def test_an_app_of_ones_own_has_no_path_of_this_machine(folder, capsys):
    """--own-app writes main.py and a cdktf.json that runs it with PATH's Python; the app synthesizes both stacks."""
    assert main(["init", "--yes", "--own-app"]) == 0
    assert "main.py: the cdktf app, yours to edit" in capsys.readouterr().out
    kit = json.loads((folder / "cdktf.json").read_text())
    assert kit["app"] == "python3 main.py"
    written = (folder / "cdktf.json").read_text() + (folder / "main.py").read_text()
    assert str(checkout.ROOT) not in written
    assert str(folder) not in written
    assert sys.executable not in written
    line = refused(capsys, "other.yaml", "--own-app")
    assert "main.py and cdktf.json: exists already" in line
    assert not (folder / "other.yaml").exists()


@pytest.mark.slow
def test_an_app_of_ones_own_adds_resources(folder, capsys):
    """`podwright` and the shell run the same app: what add_own adds is in Terraform's JSON."""
    assert main(["init", "--yes", "--own-app"]) == 0
    own = (folder / "main.py").read_text()
    statement = (
        'foundation.roles["compute"].add_statement({"actions": ["ecr:GetAuthorizationToken"], "resources": ["*"]})'
    )
    assert own.count(statement) == 1, "the docstring's example is what this test adds"
    (folder / "main.py").write_text(own.replace("\n\n\ndef main()", f"\n    {statement}\n\n\ndef main()", 1))
    Kit(folder / "cluster.yaml", folder).synthesize()
    stacks = folder / "cdktf.out" / "stacks"
    assert "ecr:GetAuthorizationToken" in (stacks / "podwright-demo-foundation" / "cdk.tf.json").read_text()
    (folder / "cluster.yaml").write_text("name: wrong\n")
    with pytest.raises(OperationError, match=r"cluster\.yaml:1"):
        Kit(folder / "cluster.yaml", folder).synthesize()


@pytest.mark.slow
def test_the_snippet_of_the_page_goes_into_an_app_of_ones_own(folder):
    """The add_own of docs/own_stack.md, pasted in place of main.py's, grants what it says."""
    assert main(["init", "--yes", "--own-app"]) == 0
    (snippet, *_) = (block.text for block in blocks() if block.page == "docs/own_stack.md")
    before, _, rest = (folder / "main.py").read_text().partition("def add_own(")
    _, mark, after = rest.partition("\n\n\ndef main()")
    (folder / "main.py").write_text(before + snippet.rstrip() + mark + after)
    Kit(folder / "cluster.yaml", folder).synthesize()
    stack = folder / "cdktf.out" / "stacks" / "podwright-demo-foundation" / "cdk.tf.json"
    assert "sagemaker-datasets/papers/*" in stack.read_text()


@pytest.mark.slow
def test_more_file_systems_go_into_an_app_of_ones_own(folder):
    """The other add_own of docs/own_stack.md makes a second Lustre and a volume of the settings' OpenZFS."""
    assert main(["init", "--yes", "--own-app"]) == 0
    (snippet,) = (block.text for block in blocks() if "aws_fsx_openzfs_volume" in block.text)
    before, _, rest = (folder / "main.py").read_text().partition("def add_own(")
    _, mark, after = rest.partition("\n\n\ndef main()")
    (folder / "main.py").write_text(before + snippet.rstrip() + mark + after)
    with (folder / "cluster.yaml").open("a") as file:
        file.write("\nopenzfs: {source: create}\n")
    Kit(folder / "cluster.yaml", folder).synthesize()
    stack = json.loads((folder / "cdktf.out/stacks/podwright-demo-foundation/cdk.tf.json").read_text())
    assert len(stack["resource"]["aws_fsx_lustre_file_system"]) == 2
    (volume,) = stack["resource"]["aws_fsx_openzfs_volume"].values()
    assert (volume["name"], volume["storage_capacity_quota_gib"]) == ("projects", 100)
    assert volume["parent_volume_id"].endswith(".root_volume_id}")
    assert "Scratch" in stack["output"]


def test_a_wheel_writes_the_settings_alone(folder, tmp_path_factory):
    """Installed without a checkout, podwright writes settings and schema, and no cdktf.json that nothing could run."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(checkout.ROOT / "podwright", site / "podwright")
    subprocess.run(
        [sys.executable, "-m", "podwright", "init", "--yes"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
    )
    assert sorted(path.name for path in folder.iterdir()) == [".podwright", "cluster.yaml"]


def test_the_zone_is_one_that_offers_the_type(folder, capsys, aws):
    """EC2 is asked for zones with the instance type, and the first one is taken."""
    offered = aws.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": ["g5.12xlarge"]}]
    )["InstanceTypeOfferings"]
    assert main(["init", "--yes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "podwright.init/1"
    assert answer["answers"]["zone"] == min(item["Location"] for item in offered)
    assert answer["usd_per_hour"] > 10


def test_a_model_gets_a_cluster_and_a_run(folder, capsys):
    """The planner proposes type and nodes, and its run.yaml loads and fits."""
    assert main(["init", "--yes", "--model", "llama3_2_1b", "--tokens", "5B", "--deadline", "2d"]) == 0
    out = capsys.readouterr().out
    assert main(["check", "--run", "run.yaml", "--strict"]) == 0  # with room for the planner's error
    workers = load(folder / "cluster.yaml").cluster.instance_groups[1]
    assert f"podwright submit run.yaml --nodes {workers.count}" in out
    run = load_run(folder / "run.yaml")
    assert run.train_batch_size > 1
    assert run.max_steps > 1000


@pytest.mark.parametrize("tokens", ["1B", "20B"])
def test_the_proposed_nodes_are_cheap_by_the_hour(folder, capsys, tokens):
    """A small model gets few dollars per hour where the totals are alike, in time, and the file says why."""
    assert main(["init", "--yes", "--model", "llama3_2_1b", "--tokens", tokens]) == 0
    out = " ".join(capsys.readouterr().out.split())
    capsys.readouterr()
    assert main(["plan", "--model", "llama3_2_1b", "--tokens", tokens, "--deadline", "7d", "--json"]) == 0
    offers = json.loads(capsys.readouterr().out)
    workers = load(folder / "cluster.yaml").cluster.instance_groups[1]
    chosen = next(offer for offer in offers if offer["instance_type"] == workers.instance_type)
    assert chosen["nodes"] == workers.count
    assert chosen["hours"] <= 7 * 24
    assert chosen["usd"] < 1.5 * offers[0]["usd"], "the cheapest, but for the planner's error"
    assert chosen["usd"] / chosen["hours"] < 20 < offers[0]["usd"] / offers[0]["hours"]
    text = (folder / "cluster.yaml").read_text()
    lines = [line for line in text.splitlines() if line.startswith("      # ")]
    comment = " ".join(line.strip(" #") for line in lines)
    assert f"llama3_2_1b on {tokens} tokens takes" in comment
    assert "$/h instead of" in comment
    assert comment in out
    assert max(map(len, lines)) <= 100
    assert main(["check", "--run", "run.yaml", "--strict"]) == 0


def test_nodes_of_ones_own_choice_get_no_reason(folder):
    """Another number of nodes than the proposed one is not explained by the planner."""
    words = ["--model", "llama3_2_1b", "--tokens", "1B", "--instance-type", "ml.g5.12xlarge", "--nodes", "3"]
    assert main(["init", "--yes", *words]) == 0
    assert "planner" not in (folder / "cluster.yaml").read_text()


def test_a_deadline_that_nothing_keeps_is_refused(folder, capsys):
    """A deadline that no cluster keeps, or not the chosen one, writes nothing; the message has what would."""
    model = ["--model", "llama3_2_1b", "--tokens", "50B", "--instance-type", "ml.g5.12xlarge"]
    line = refused(capsys, *model, "--deadline", "1h")
    assert "--deadline 1h: no cluster of up to 64 nodes of ml.g5.12xlarge trains llama3_2_1b on 50B tokens" in line
    assert re.search(r"; 64 x ml.g5.12xlarge take \S+ h: give more time or fewer tokens$", line)
    line = refused(capsys, *model, "--deadline", "7d", "--nodes", "2")
    assert re.search(
        r"--deadline 7d: llama3_2_1b on 50B tokens: 1\d\.\d days .* on 2 x ml.g5.12xlarge: --nodes 4", line
    )
    assert list(folder.iterdir()) == []
    assert main(["init", "--yes", *model, "--nodes", "2"]) == 0
    assert "longer than the usual 7d" in capsys.readouterr().out


def test_nothing_is_overwritten(folder, capsys):
    """A cluster.yaml or run.yaml that is there stays as it is."""
    (folder / "cluster.yaml").write_text("mine")
    assert "cluster.yaml: exists already" in refused(capsys)
    (folder / "cluster.yaml").unlink()
    (folder / "run.yaml").write_text("mine")
    assert "run.yaml: exists already" in refused(capsys, "--model", "llama3_2_1b")
    line = refused(capsys, "--model", "llama3_2_1b", "--tokens", "many", "--deadline", "7")
    assert "--tokens many: " in line, "wrong answers are named first"
    assert "--deadline 7: " in line
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


def test_all_wrong_answers_are_named(folder, capsys):
    """Wrong flags are one line with what is allowed; no file is written."""
    line = refused(
        capsys, "--region", "us-west-9", "--instance-type", "p5.48xlarge", "--nodes", "many", "--tokens", "5B"
    )
    assert "--region us-west-9: HyperPod is in " in line
    assert "--instance-type p5.48xlarge: HyperPod has no such type: did you mean ml.p5.48xlarge" in line
    assert "--nodes many: need a whole number" in line
    assert "--tokens 5B: only with --model" in line
    line = refused(capsys, "--model", "llama3_2_1b", "--instance-type", "ml.m5.xlarge")
    assert line == "podwright: ml.m5.xlarge has no accelerator. Use a GPU or Trainium type, such as ml.g5.12xlarge"
    assert "--subnet-cidr is needed" in refused(capsys, *VPC)
    assert "name: got my cluster, need 1 to 63 letters" in refused(capsys, "--name", "my cluster")
    assert "did you mean llama3_2_1b" in refused(capsys, "--model", "llama3_2_1").lower()
    line = refused(capsys, "--model", "llama3_1_70b", "--instance-type", "ml.g5.12xlarge", "--nodes", "1")
    assert "llama3_1_70b on 1 x ml.g5.12xlarge: this run needs" in line
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", example_names())
def test_an_example_is_copied(folder, capsys, name):
    """An example arrives with its schema and the price of its nodes; answers do not go with it."""
    assert main(["init", "mine.yaml", "--example", name]) == 0
    first, *lines = (folder / "mine.yaml").read_text().splitlines()
    assert first == "# yaml-language-server: $schema=.podwright/cluster.schema.json"
    assert (folder / ".podwright" / "cluster.schema.json").read_text() == cluster_text()
    assert lines == (EXAMPLES / name / "cluster.yaml").read_text().splitlines()[1:]
    assert "$/h while they run" in capsys.readouterr().out
    assert "--example conflicts with --nodes" in refused(capsys, "other.yaml", "--example", name, "--nodes", "4")


def test_questions_on_a_terminal(folder):
    """Each answer has a default in brackets; a wrong one is asked for again; prices and zones come first."""
    with Terminal([sys.executable, "-m", "podwright", "init"], cwd=folder) as terminal:
        for question, answer in (
            ("name of the cluster [podwright-demo]: ", "night"),
            ("AWS region [us-west-2]: ", ""),
            ("model to train, such as llama3_2_1b [none]: ", "bert"),
            ("podwright-train has no such model: use one of llama1_7b", ""),
            ("instance type of the compute nodes [ml.g5.12xlarge]: ", "ml.g5.xlarg"),
            ("did you mean ml.g5.xlarge", "ml.g5.xlarge"),
            ("$/h a node", ""),
            ("subnet) [create]: ", "new"),
            ("use one of create, existing_vpc, existing", ""),
            ("EC2 offers ml.g5.xlarge in usw2-az", ""),
        ):
            terminal.wait_for(question)
            terminal.type(f"{answer}\n")
        assert terminal.wait() == 0
    settings = load(folder / "cluster.yaml")
    assert settings.name == "night"
    assert settings.cluster.instance_groups[1].instance_type == "ml.g5.xlarge"
