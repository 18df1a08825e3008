"""The private data that ``podwright collect`` leaves out, and its words for answers and differences.

Nodes are described in tests/rehearsal/test_collect.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright.aws_session import Session
from podwright.cli import main
from podwright.operations.account import hyperpod
from podwright.operations.collection import api_shapes, node_program
from podwright.operations.collection.cluster_profile import SCHEMA, ClusterProfile
from podwright.operations.collection.comparison import differences
from podwright.operations.collection.redaction import Redaction
from podwright_testing.hyperpod import BUCKET, ClusterMaker

HEX = st.text("0123456789abcdef", min_size=8, max_size=17)
# A digit beside an account or an address would make another number of it.
ENDS_OF_NUMBERS = st.text().filter(lambda text: not text or not (text[0].isdigit() or text[-1].isdigit()))
ACCOUNTS = st.text("0123456789", min_size=12, max_size=12)
ADDRESSES = st.ip_addresses(v=4).map(str)
INSTANCES = HEX.map(lambda digits: f"i-{digits}")
ARNS = st.builds(lambda account, digits: f"arn:aws:sagemaker:us-west-2:{account}:cluster/{digits}", ACCOUNTS, HEX)
HOSTS = ADDRESSES.map(lambda address: f"ip-{address.replace('.', '-')}")
EMAILS = st.text("abcdefgh", min_size=3).map(lambda name: f"{name}@acme.example")


@given(
    before=ENDS_OF_NUMBERS,
    private=st.one_of(ACCOUNTS, ADDRESSES, INSTANCES, ARNS, HOSTS, EMAILS),
    after=ENDS_OF_NUMBERS,
)
def test_no_text_keeps_an_identifier(before: str, private: str, after: str) -> None:
    """Accounts, ARNs, instance ids, addresses, host names and e-mail addresses are replaced between any texts."""
    redaction = Redaction({})
    assert private not in redaction.text(f"{before}{private}{after}")
    assert private not in json.dumps(redaction.document({private: [{"key": private}]}))
    assert redaction.text(f"{private} {private}").split(" ")[0] == redaction.text(private)


@given(st.text())
def test_redaction_has_no_second_effect(text: str) -> None:
    """A pseudonym is no identifier itself."""
    redaction = Redaction({})
    once = redaction.text(text)
    assert redaction.text(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "ReturnToService=2",
        "/opt/slurm/lib/auto_resume.so",
        "/home/ubuntu",
        "APT::Periodic::Unattended-Upgrade",
        "2026-11-28T12:30:15",
        "select/cons_tres",
        "535.183.01",
        "x86_64-linux-gnu",
        "ml.p5.48xlarge",
    ],
)
def test_behaviour_stays_readable(text: str) -> None:
    """Paths of the image, versions of three numbers, times and Slurm's words are no identifiers."""
    assert Redaction({"demo": "cluster"}).text(text) == text


def test_names_of_the_account_have_stable_pseudonyms() -> None:
    """A name is replaced by its kind and a number, everywhere the same; words that all clusters have stay."""
    redaction = Redaction({"acme": "cluster", "acme-gpus": "group", "compute": "group"})
    assert redaction.text("acme-gpus of acme: compute") == "group-1 of cluster-1: compute"
    assert redaction.text("acme") == "cluster-1"
    assert redaction.text("secret at s3://acme-scripts/a and /home/ada/x") == "secret at bucket-1 and /home/user-1/x"
    assert redaction.version("2.15.0.1") == "2.15.0.1"
    assert redaction.version("2.15.0.1 on 10.0.0.1") == "address-1 on address-2"


def test_a_value_is_shown_only_if_it_describes_behaviour() -> None:
    """Numbers and listed keys are shown; other values are a word for their kind; secrets are hidden."""
    lines = [
        "ReturnToService=2  # ask ada@acme.example",
        "#podwright: TaskPlugin=task/none",
        "include podwright-slurm.conf",
        "include accounting.conf",
        "include acme.conf",
        "ClusterName=acme",
        "AccountingStoragePass=12345",
        "Prolog=/fsx/ada/prolog.sh",
        'RebootProgram="/usr/bin/systemctl reboot"',
        "NodeName=ip-10-0-0-1 NodeAddr=10.0.0.1 CPUs=48 State=CLOUD",
        "NodeName=ip-10-0-0-2 NodeAddr=10.0.0.2 CPUs=96 State=CLOUD",
    ]
    assert node_program.slurm_file("\n".join(lines)) == {
        "ReturnToService": "2",
        "TaskPlugin": "task/none",
        "include": "accounting.conf | text",
        "ClusterName": "text",
        "AccountingStoragePass": "hidden",
        "Prolog": "path",
        "RebootProgram": '"/usr/bin/systemctl reboot"',
        "NodeName": "with CPUs, NodeAddr, State=CLOUD",
    }
    parameters = json.dumps({"version": "1.0.0", "ada": {"key": 1}, "worker_groups": [{"partition_name": "acme"}]})
    assert node_program.json_shape(parameters, node_program.PARAMETER_KEYS) == {
        "version": "text",
        "*.*": "number",
        "worker_groups[].partition_name": "text",
    }


@given(key=st.text("abcdefghijklmnopqrstuvwxyzABCXYZ", min_size=1), value=st.text())
def test_a_value_of_an_unlisted_key_is_its_kind_or_a_number(key: str, value: str) -> None:
    """Whatever a file of Slurm has, a key that is not listed shows no word of the user's."""
    if key.lower() in node_program.SHOWN:
        return
    printed = node_program.shown(key, value)
    assert printed in {"", "text", "path", "hidden"} or node_program.PLAIN.fullmatch(printed.strip('"'))


@pytest.mark.usefixtures("folder")
def test_answers_of_the_api_are_types_and_enumerations(maker: ClusterMaker) -> None:
    """Texts are named by their type, states by their words; an operation that AWS refuses has its error code."""
    maker.make("shaped")
    session = Session()
    cluster = hyperpod.find(session, "shaped")
    shapes = api_shapes.answers(session, cluster, hyperpod.nodes(session, cluster))
    assert shapes["DescribeCluster"]["InstanceGroups[].LifeCycleConfig.SourceS3Uri"] == "string"
    assert shapes["DescribeCluster"]["NodeRecovery"] == "Automatic"
    assert shapes["DescribeClusterNode"]["NodeDetails.InstanceStatus.Status"] == "Running"
    model = session.client("sagemaker").meta.service_model.operation_model("DescribeCluster").output_shape
    body = {"ClusterStatus": "Melting", "Temperature": {"ada": 1}, "InstanceGroups": [], "FailureMessage": None}
    assert api_shapes.shape_of([body], model) == {
        "ClusterStatus": "Melting",
        "FailureMessage": "null",
        "InstanceGroups[]": "empty",
        "Temperature": "not in botocore's model",
    }
    assert not {"shaped", BUCKET, cluster.arn} & {value for shape in shapes.values() for value in shape.values()}


def test_a_role_that_one_profile_lacks_is_not_compared() -> None:
    """Keys, values and sections are compared for the roles of both, and answers always."""
    profile = ClusterProfile({"controller": {"slurm.conf": {"A": "1", "B": ""}}}, {"DescribeCluster": {"x": "string"}})
    nodes = {"controller": {"slurm.conf": {"A": "2"}, "units": {"u": "on"}}, "login": {"slurm.conf": {}}}
    assert [item.line("it") for item in differences(profile, ClusterProfile(nodes, {}))] == [
        "controller: slurm.conf: A: 1; it has 2",
        'controller: slurm.conf: B: ""; it has nothing',
        "controller: units: u: nothing; it has on",
        "API: DescribeCluster: x: string; it has nothing",
    ]


@pytest.mark.parametrize("content", ["[]", '{"schema": "podwright.profile/9"}', f'{{"schema": "{SCHEMA}", "api": []}}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    """Another JSON file is a wrong argument, with the command that writes profiles."""
    path = tmp_path / "profile.json"
    path.write_text(content)
    assert main(["collect", "--compare", str(path)]) == 2
    assert "is not a profile: name a file that `podwright collect` wrote" in capsys.readouterr().err


def test_the_rehearsals_own_profile_has_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It comes with podwright, and can be compared without a cluster."""
    path = tmp_path / "profile.json"
    profile = ClusterProfile.rehearsed()
    profile.write(path)
    assert ClusterProfile.read(path) == profile
    assert main(["collect", "--compare", str(path)]) == 0
    assert capsys.readouterr().out == "no difference from the rehearsal\n"
