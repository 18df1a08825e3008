"""The contract: what constructs write nodes read, and what is wrong with it is named completely."""

from __future__ import annotations

import dataclasses
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright.settings import nodes
from podwright.settings.section import sections
from podwright_bootstrap import features
from podwright_bootstrap.boot_report import failure
from podwright_bootstrap.contract import (
    Accounting,
    ContractError,
    InstanceFacts,
    MultiHead,
    NodeRecord,
    ProvisioningParameters,
    TrainingPayload,
    WorkerGroup,
    with_users,
)
from podwright_bootstrap.features import FOLLOWED, Health, NodeFeatures, Scratch, User
from podwright_bootstrap.node import read_instances
from podwright_testing.mutations import mutated

ONLY_IN_SETTINGS = {nodes.S3Mount: {"key_arn"}}  # of the role

characters = st.characters(exclude_characters="\0", exclude_categories=("Cs",))  # which no text of the file holds
names = st.text(characters, min_size=1, max_size=20)
st.register_type_strategy(str, st.text(characters))
optional_names = st.none() | names


@st.composite
def parameters(draw):
    """Anything the constructs may write: a file system has both of its names or none."""
    groups = draw(st.lists(st.builds(WorkerGroup, names, names), max_size=3))
    fsx = draw(st.none() | st.tuples(names, names)) or (None, None)
    return ProvisioningParameters(
        cluster_name=draw(names),
        controller_group=draw(names),
        worker_groups=groups,
        login_group=draw(optional_names),
        more_login_groups=draw(st.lists(names, max_size=2)),
        fsx_dns_name=fsx[0],
        fsx_mountname=fsx[1],
        fsx_openzfs_dns_name=draw(optional_names),
        openzfs_mount_path=draw(names),
        region=draw(names),
        instance_facts=draw(st.dictionaries(names, st.builds(InstanceFacts, efa_interfaces=st.integers(0, 32)))),
        training=draw(st.none() | st.builds(TrainingPayload, names, names, names, names)),
        multi_head=draw(st.none() | st.builds(MultiHead, names, names, names, optional_names)),
        accounting=draw(
            st.none() | st.builds(Accounting, st.text(characters, max_size=20), st.integers(1, 65535), names)
        ),
        auto_resume=draw(st.booleans()),
        nodes=draw(st.from_type(NodeFeatures)),
    )


@given(parameters())
@pytest.mark.slow
def test_parameters_survive_the_way_to_the_node(written):
    """A node reads what the constructs write."""
    assert ProvisioningParameters.from_json(json.dumps(written.to_dict())) == written


@given(parameters(), st.from_type(NodeFeatures))
@pytest.mark.slow
def test_nodes_follow_users_and_nothing_else(known, deployed):
    """Of a later deployment a node takes users, groups and Slurm's policy; the rest stays as it is."""
    known = dataclasses.replace(known, nodes=dataclasses.replace(known.nodes, motd=True))
    text = with_users(json.dumps(known.to_dict()), json.dumps(deployed.followed()))
    users = {name: getattr(NodeFeatures.from_dict(deployed.to_dict()), name) for name in FOLLOWED}
    assert ProvisioningParameters.from_json(text).nodes == dataclasses.replace(known.nodes, **users)


def test_aws_keys_and_ours_are_apart():
    """The agent's keys are at the top, all of ours below one key, and what is empty is left out."""
    content = ProvisioningParameters("demo", "controller", [WorkerGroup("workers", "gpu")]).to_dict()
    assert content == {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller",
        "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
        "podwright": {
            "cluster_name": "demo",
            "region": "",
            "lustre_mount_path": "/fsx",
            "openzfs_mount_path": "/home",
            "auto_resume": True,
            "instance_facts": {},
        },
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3"])
def test_anything_but_a_json_object_is_a_contract_error(text):
    """Both files must hold an object."""
    with pytest.raises(ContractError, match=r"provisioning_parameters\.json"):
        ProvisioningParameters.from_json(text)
    with pytest.raises(ContractError, match=r"node\.json"):
        NodeRecord.from_json(text)


def test_an_incomplete_group_is_named():
    """A group without its partition is refused, with the key that lacks."""
    text = (
        '{"controller_group": "c", "worker_groups": [{"instance_group_name": "w"}], "podwright": {"cluster_name": "x"}}'
    )
    with pytest.raises(ContractError, match=r"worker_groups\[0\] lacks partition_name"):
        ProvisioningParameters.from_json(text)


def test_a_newer_writer_is_read():
    """Keys that this version does not know are left alone."""
    text = '{"controller_group": "c", "worker_groups": [], "podwright": {"cluster_name": "x", "later": 1}, "other": 2}'
    assert ProvisioningParameters.from_json(text).cluster_name == "x"


def test_a_record_survives_the_disk():
    """A node's record reads back as it was written."""
    names = {item.name: item.name for item in dataclasses.fields(NodeRecord)}
    numbers = {"accelerators_per_node": 8, "efa_interfaces": 32, "partition": None}
    record = NodeRecord(**{**names, **numbers, "partitions": {"gpu": InstanceFacts("gpu", 8, "H100", 32)}})
    assert NodeRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"motdd": True}, r"podwright\.nodes: NodeFeatures does not know motdd"),
        ({"health": {"efa": "ignore"}}, r"NodeFeatures\.health\.efa: got 'ignore', need fail or warn or skip"),
        ({"limits": {"open_file": 1}}, r"NodeFeatures\.limits does not know open_file"),
        ({"users": [{"name": "ada", "uid": 2001, "shell": "zsh"}]}, r"users\[0\] does not know shell"),
    ],
)
def test_an_unknown_feature_is_refused(content, message):
    """A node refuses a feature it does not know: it would be left out without a word."""
    own = {"cluster_name": "x", "nodes": content}
    with pytest.raises(ContractError, match=message):
        ProvisioningParameters.from_json(json.dumps({"controller_group": "c", "worker_groups": [], "podwright": own}))


def test_each_setting_of_nodes_reaches_them():
    """A section of cluster.yaml's nodes has its feature's fields and defaults, and no others but the role's."""

    def compare(section, feature):
        fields = {item.name: item for item in dataclasses.fields(feature)}
        assert set(section.model_fields) - ONLY_IN_SETTINGS.get(section, set()) == set(fields), section
        for name, field in fields.items():
            setting = section.model_fields[name]
            assert setting.description == field.metadata["doc"], (section, name)
            required = field.default is field.default_factory is dataclasses.MISSING
            assert setting.is_required() == required, (section, name)
            if not required:
                assert setting.get_default(call_default_factory=True) == field_default(field), (section, name)
            for nested in sections(setting.annotation):
                compare(nested, getattr(features, nested.__name__))
                compared.add(nested.__name__)

    compared = set()
    compare(nodes.NodesSection, NodeFeatures)
    classes = {name for name, value in vars(features).items() if dataclasses.is_dataclass(value)}
    assert compared == classes - {"NodeFeatures"}


def field_default(field):
    """Return the value of a dataclass's field that is not given."""
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()


FILES = {
    "parameters": ProvisioningParameters(
        "demo",
        "controller",
        [WorkerGroup("workers", "gpu")],
        fsx_dns_name="fs-1.fsx",
        fsx_mountname="abc",
        instance_facts={"workers": InstanceFacts("gpu", 8, "H100", 32)},
        training=TrainingPayload("s3://b/w", "0", "s3://b/r", "1"),
        accounting=Accounting("db", 3306, "arn"),
        nodes=NodeFeatures(users=(User("ada", 2001, ssh_keys=("k",)),), scratch=Scratch(), health=Health()),
    ).to_dict(),
    "resources": {
        "ClusterConfig": {"ClusterArn": "arn"},
        "InstanceGroups": [
            {"Name": "workers", "InstanceType": "ml.p5.48xlarge", "Instances": [{"CustomerIpAddress": "10.0.0.1"}]},
            {"Name": "controller", "InstanceType": "ml.m5.large", "Instances": None},
        ],
    },
}


@pytest.mark.slow
def test_of_four_thousand_broken_files_each_is_a_line(tmp_path):
    """Whatever is in the two files, a node reads it, or says in one line what is wrong."""
    random, path = Random(0), tmp_path / "resource_config.json"  # noqa: S311 (repeatable accidents)
    refusals: list[str] = []
    for _ in range(2000):
        try:
            read = ProvisioningParameters.from_json(mutated(FILES["parameters"], random))
        except ContractError as error:
            refusals.append(failure("identity", error, host="h", hint="x"))
        else:
            assert ProvisioningParameters.from_json(json.dumps(read.to_dict())) == read
        path.write_text(mutated(FILES["resources"], random), errors="surrogatepass")
        for instance in read_instances(path):
            assert all(isinstance(value, str) and value.isprintable() for value in vars(instance).values())
    assert [line for line in refusals if len(line.encode().splitlines()) != 1] == []
    assert 500 < len(refusals) < 2000
