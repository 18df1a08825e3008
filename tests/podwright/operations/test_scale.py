"""``podwright scale``: cluster.yaml edited in place, or a cluster without one updated through the API."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from podwright.aws_session import Session
from podwright.checkout import ROOT
from podwright.cli import main
from podwright.operations.account import hyperpod
from podwright.operations.deployment.folder_lock import FolderLock
from podwright_testing.documents import as_described

pytestmark = pytest.mark.usefixtures("folder")  # the environment that leads to the stand-in

TEXT = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
COUNT = "      count: 2\n"
ONE_LINE = json.dumps(yaml.safe_load(TEXT)).replace('"count": 2', '"count": %s')  # column 1 is the byte order mark's


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"\ufeff{ONE_LINE % '2'}", f"\ufeff{ONE_LINE % '16'}"),
        (TEXT, TEXT.replace(COUNT, COUNT.replace("2", "16"))),
        (TEXT.replace(COUNT, '      count: "2"   # of two\n'), TEXT.replace(COUNT, "      count: 16   # of two\n")),
        (
            f"\ufeff{TEXT}".replace("\n", "\r\n"),
            f"\ufeff{TEXT}".replace(COUNT, "      count: 16\n").replace("\n", "\r\n"),
        ),
    ],
)
def test_only_the_number_changes(capsys, before, after):
    """Comments, order, quotes elsewhere, line ends and the byte order mark stay; the answer has the price."""
    file = Path("cluster.yaml")
    file.write_bytes(before.encode())
    assert main(["scale", "workers", "16"]) == 0
    assert file.read_bytes() == after.encode()
    line = (
        after.splitlines().index(next(line for line in after.splitlines() if "count: 16" in line.replace('"', ""))) + 1
    )
    out = capsys.readouterr().out
    assert f"cluster.yaml:{line}: workers: 2 -> 16 nodes, 11.45 -> 91.63 $/h" in out
    assert "next: `podwright deploy --only cluster`" in out


def test_scaling_to_zero_and_back_restores_the_file(capsys):
    """4 -> 0 -> 4 leaves the file as it was, its mode and a link included."""
    real = Path("shared.yaml")
    real.write_text(TEXT.replace(COUNT, COUNT.replace("2", "4")), encoding="utf-8")
    real.chmod(0o640)
    Path("cluster.yaml").symlink_to(real)
    assert main(["scale", "workers", "0"]) == 0
    assert "AWS chooses the nodes to delete" in capsys.readouterr().out
    assert main(["scale", "workers", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    as_described(answer)
    assert (answer["schema"], answer["before"], answer["after"]) == ("podwright.scale/1", 0, 4)
    assert real.read_text(encoding="utf-8") == TEXT.replace(COUNT, COUNT.replace("2", "4"))
    assert (Path("cluster.yaml").is_symlink(), real.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(path.name for path in Path().iterdir()) == ["cluster.yaml", "shared.yaml"]


@pytest.mark.terraform
@pytest.mark.parametrize("obstacle", ["lock", "plan", "edit"])
def test_a_number_that_may_not_be_deployed_leaves_the_file(capsys, obstacle):
    """While another command works there, if Terraform cannot plan, and if it is edited meanwhile, the file stays."""
    file, app = Path("cluster.yaml"), Path("app.sh")
    file.write_text(TEXT, encoding="utf-8")
    stack = Path("cdktf.out/stacks/podwright-demo-cluster")
    (stack / ".terraform").mkdir(parents=True)
    Path("cdktf.out/manifest.json").write_text(json.dumps({"stacks": {stack.name: {}}}))
    Path("cdktf.json").write_text(json.dumps({"app": "sh app.sh"}))
    (stack / "cdk.tf.json").write_text(json.dumps({"terraform": {"backend": {"local": {"path": "state"}}}}))
    before = TEXT + "# an edit\n" if obstacle == "edit" else TEXT
    see = "grep 'count: 16' $PODWRIGHT_CONFIG >seen"
    app.write_text({"plan": "exit 1", "edit": f"echo '# an edit' >>cluster.yaml; {see}"}.get(obstacle, see))
    other = FolderLock(Path("cdktf.out/podwright.lock").absolute())
    with other.of("deploy") if obstacle == "lock" else nullcontext():
        assert main(["scale", "workers", "16"]) != 0
    said = {"lock": "another podwright command runs in", "plan": "`sh app.sh` failed", "edit": "was edited while"}
    assert said[obstacle] in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == before
    app.write_text(see)
    assert main(["scale", "workers", "16"]) == 0
    assert file.read_text(encoding="utf-8") == before.replace(COUNT, COUNT.replace("2", "16"))
    assert not list(Path().glob(".*scale"))


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["worker", "4"], 2, "cluster.yaml has no instance group 'worker': did you mean workers?"),
        (["controller", "0"], 1, "error"),
        (["workers", "-1"], 2, "need a whole number from 0 to 6758"),
        (["workers", "6759"], 2, "need a whole number from 0 to 6758"),
    ],
)
def test_a_wrong_number_leaves_the_file(capsys, arguments, status, expected):
    """An unknown group, and a number that the rules refuse, change nothing."""
    Path("cluster.yaml").write_text(TEXT, encoding="utf-8")
    try:
        returned = main(["scale", *arguments])
    except SystemExit as stop:  # argparse
        returned = stop.code
    assert returned == status
    assert expected in capsys.readouterr().err
    assert Path("cluster.yaml").read_text(encoding="utf-8") == TEXT


def test_a_cluster_without_a_file_is_updated(maker, capsys):
    """Through the API the group's other settings stay, and the nodes that stay are the same instances."""
    maker.make("elsewhere", workers=2)
    session = Session()
    before = hyperpod.find(session, "elsewhere")
    nodes = hyperpod.nodes(session, before)
    assert main(["scale", "workers", "4", "--cluster", "elsewhere", "--yes"]) == 0
    assert "workers: 2 -> 4 nodes, " in capsys.readouterr().out
    after = hyperpod.find(session, "elsewhere")
    ids = [node.instance_id for node in hyperpod.nodes(session, after)]
    assert len(ids) == 5
    assert {node.instance_id for node in nodes} < set(ids)
    ignored = {"TargetCount": 0, "CurrentCount": 0, "Status": ""}
    described = [[{**group.description, **ignored} for group in found.groups] for found in (before, after)]
    assert described[0] == described[1]


def test_a_controller_is_not_scaled(maker, capsys):
    """Through the API the controller keeps its number of nodes, and a change needs a yes."""
    maker.make("head", workers=1)
    assert main(["scale", "controller", "2", "--cluster", "head", "--yes"]) == 2
    assert "controller runs Slurm's controller: its number of nodes stays" in capsys.readouterr().err
    assert main(["scale", "workers", "2", "--cluster", "head"]) == 2
    assert "confirm with --yes" in capsys.readouterr().err


def test_a_cluster_of_this_name_in_another_region_is_not_the_files(maker, capsys):
    """--region of another region scales the cluster there, and the file of this one stays."""
    maker.make("twin")
    text = TEXT.replace("podwright-demo", "twin").replace("us-west-2", "us-east-1").replace("usw2-", "use1-")
    file = Path("cluster.yaml")
    file.write_text(text, encoding="utf-8")
    assert main(["scale", "workers", "3", "--region", "us-west-2", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("twin: workers: 2 -> 3 nodes")
    assert file.read_text(encoding="utf-8") == text
