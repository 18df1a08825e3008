"""The rules: each is in the list, explained, and found broken by settings made for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from podwright import names, regions, rules
from podwright.check import codes
from podwright.findings import Level, dotted
from podwright.partial import partial
from podwright.settings import Settings, UnknownValueError
from podwright_constructs import checks, facts
from podwright_constructs.catalog import cluster_instance_types

CONTROLLER = {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1}
WORKERS = {"name": "workers", "role": "compute", "instance_type": "ml.g5.xlarge", "count": 2, "partition": "gpu"}
NETWORK = {"source": "create", "availability_zone_id": "usw2-az1"}
BROUGHT_NETWORK = {"source": "existing", "vpc_id": "vpc-1", "subnet_ids": ["subnet-1"], "security_group_id": "sg-1"}
BROUGHT_LUSTRE = {"source": "existing", "dns_name": "fs-0a1b2c3d.fsx.us-west-2.amazonaws.com", "mount_name": "fsx"}


def content(**changes: Any) -> dict[str, Any]:
    """A good settings file as data, with other sections."""
    good = {
        "name": "demo",
        "region": "us-west-2",
        "network": NETWORK,
        "lustre": {"source": "create"},
        "bucket": {"source": "create"},
        "role": {"source": "create"},
        "cluster": {"instance_groups": [CONTROLLER, WORKERS]},
    }
    return {**good, **changes}


def groups(*instance_groups: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that change when the instance groups do."""
    return {"cluster": {"instance_groups": list(instance_groups)}}


def broken(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Code and path of every finding."""
    return [(item.code, dotted(item.path)) for item in rules.broken(Settings.model_validate(data))]


# Code, the changed sections, and where the finding is.
BROKEN = [
    ("known-region", {"region": "us-wst-2a"}, "region"),
    ("known-region", {"region": "us-west-7", "network": {**NETWORK, "availability_zone_id": "usw7-az1"}}, "region"),
    ("zone-in-region", {"region": "us-east-1"}, "network.availability_zone_id"),
    ("cluster-name", {"name": "demo-"}, "name"),
    ("cluster-name", {"name": "d" * 64}, "name"),
    ("tag-limits", {"tags": {"aws:team": "a"}}, "tags.aws:team"),
    ("tag-limits", {"tags": {f"t{number}": "" for number in range(facts.MAX_CLUSTER_TAGS)}}, "tags"),
    ("created-network", {"network": {**NETWORK, "cidr": "10.0.0.1/16"}}, "network.cidr"),
    ("created-network", {"network": {**NETWORK, "public_subnet_cidr": "10.1.0.0/24"}}, "network.public_subnet_cidr"),
    ("created-network", {"network": {**NETWORK, "public_subnet_cidr": "10.0.16.0/24"}}, "network.private_subnet_cidr"),
    ("existing-network", {"network": {**BROUGHT_NETWORK, "vpc_id": ""}}, "network.vpc_id"),
    ("existing-network", {"network": {**BROUGHT_NETWORK, "subnet_ids": ["subnet-1", "2"]}}, "network.subnet_ids[1]"),
    ("existing-network", {"network": {**BROUGHT_NETWORK, "subnet_ids": []}}, "network.subnet_ids"),
    ("created-lustre", {"lustre": {"source": "create", "capacity_gib": 1000}}, "lustre.capacity_gib"),
    ("created-lustre", {"lustre": {"source": "create", "mount_path": "fsx"}}, "lustre.mount_path"),
    ("existing-lustre", {"lustre": {**BROUGHT_LUSTRE, "mount_name": "too long a name"}}, "lustre.mount_name"),
    (
        "existing-lustre-in-region",
        {"lustre": {**BROUGHT_LUSTRE, "dns_name": "fs-0a1b2c3d.fsx.us-east-1.amazonaws.com"}},
        "lustre.dns_name",
    ),
    ("existing-bucket", {"bucket": {"source": "existing", "name": "scripts"}}, "bucket.name"),
    ("existing-role", {"role": {"source": "existing", "arn": "arn:aws:iam::1:user/me"}}, "role.arn"),
    ("instance-group", groups({**CONTROLLER, "count": 0}, WORKERS), "cluster.instance_groups[0].count"),
    ("instance-group", groups({**CONTROLLER, "count": 2}, WORKERS), "cluster.instance_groups[0].count"),
    (
        "instance-group",
        groups(CONTROLLER, {**WORKERS, "instance_type": "x"}),
        "cluster.instance_groups[1].instance_type",
    ),
    ("instance-group", groups(CONTROLLER, {**WORKERS, "volume_gib": 0}), "cluster.instance_groups[1].volume_gib"),
    ("instance-group", groups({**CONTROLLER, "partition": "a"}, WORKERS), "cluster.instance_groups[0].partition"),
    ("compute-partition", groups(CONTROLLER, {**WORKERS, "partition": None}), "cluster.instance_groups[1]"),
    ("group-composition", groups(WORKERS), "cluster.instance_groups"),
    ("group-composition", groups(CONTROLLER), "cluster.instance_groups"),
    ("group-composition", groups(CONTROLLER, WORKERS, WORKERS), "cluster.instance_groups[2].name"),
    (
        "addresses",
        {"network": {**NETWORK, "private_subnet_cidr": "10.0.16.0/28"}, **groups(CONTROLLER, {**WORKERS, "count": 11})},
        "network.private_subnet_cidr",
    ),
]


@pytest.mark.parametrize(("code", "changes", "path"), BROKEN)
def test_broken_rule_is_found(code: str, changes: Mapping[str, Any], path: str):
    """Settings that break one rule give one finding with the rule's code, at the value."""
    assert broken(content(**changes)) == [(code, path)]


def test_every_rule_is_in_the_list():
    """No rule of the module is forgotten in RULES."""
    written = [
        function
        for name, function in inspect.getmembers(rules, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(function).return_annotation == "Iterator[Finding]"
    ]
    assert set(written) == set(rules.RULES)
    assert len(rules.RULES) == len(set(rules.RULES))


def test_every_rule_has_a_case_and_a_meaning():
    """Each rule has a case above, and ``explain`` can say what its code means."""
    every = {rules.code(rule) for rule in rules.RULES}
    assert {code for code, _, _ in BROKEN} == every
    assert all(codes()[code] for code in every)


def test_good_settings_break_no_rule():
    """The settings that the cases start from are fine, and so are brought resources."""
    assert broken(content()) == []
    assert broken(content(network=BROUGHT_NETWORK, lustre=BROUGHT_LUSTRE)) == []


def test_levels():
    """What AWS may accept is a warning; what it refuses is an error."""
    efa = {"network": {**NETWORK, "private_subnet_cidr": "10.0.16.0/26"}}
    h100 = {**WORKERS, "instance_type": "ml.p5.48xlarge"}
    found = rules.broken(Settings.model_validate(content(**efa, **groups(CONTROLLER, h100))))
    assert [(item.code, item.level) for item in found] == [("addresses", Level.WARNING)]


def test_rules_without_wrong_values_are_judged():
    """One wrong value of a section or group leaves its other values, and the other groups, judged."""
    data = content(
        region=["us-west-2"],
        lustre={"source": "create", "capacity_gib": "much", "throughput_mbps_per_tib": 300},
        cluster={
            "instance_groups": [
                {**CONTROLLER, "count": None, "instance_type": "ml.nothing"},
                {**WORKERS, "role": "worker"},
                {**WORKERS, "name": "more", "count": 7000},
                "no group",
            ]
        },
    )
    settings = partial(Settings, data)
    assert [(item.code, dotted(item.path)) for item in rules.broken(settings)] == [
        ("created-lustre", "lustre.throughput_mbps_per_tib"),
        ("instance-group", "cluster.instance_groups[0].instance_type"),
        ("instance-group", "cluster.instance_groups[2].count"),
    ]
    with pytest.raises(UnknownValueError, match="region"):
        _ = settings.region


# ---- formulas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("region", sorted(RegionsAndZonesBackend.zones))
def test_zone_ids_of_every_region(region: str):
    """The zone ids that EC2 gives (as moto recorded them) begin with the computed prefix, no other region's."""
    ids = [zone.zone_id for zone in RegionsAndZonesBackend.zones[region]]
    prefix = regions.zone_id_prefix(region)
    assert {zone_id.rsplit("-", 1)[0] for zone_id in ids} == {prefix}
    assert [other for other in regions.REGIONS if regions.zone_id_prefix(other) == prefix] == [region]


def test_known_regions_are_those_of_ec2():
    """The list of regions is the one that moto recorded from EC2."""
    assert sorted(regions.REGIONS) == sorted(RegionsAndZonesBackend.zones)


@given(st.text() | st.from_regex(r"[a-z]{2}(-[a-z]+){0,3}-?\d?", fullmatch=True))
def test_unknown_regions_are_not_judged(region: str):
    """Any text as region gives a prefix of letters and a digit, or none; never an error."""
    prefix = regions.zone_id_prefix(region)
    assert prefix is None or (regions.looks_like_region(region) and prefix.isalnum())


@given(st.integers(16, 28), st.integers(0, 2**32 - 1))
def test_usable_addresses(prefix_length: int, address: int):
    """A subnet has its addresses less the network's, the broadcast's and AWS's three."""
    network = IPv4Network((address, prefix_length), strict=False)
    assert rules.usable_addresses(str(network)) == len(range(int(network[4]), int(network[-1])))


@given(st.integers(21, 28), st.integers(-5, 5))
def test_addresses_are_enough_or_told(prefix_length: int, over: int):
    """The finding appears exactly when controller and workers are more than the subnet's usable addresses."""
    nodes = 2 ** (32 - prefix_length) - 5 + over
    network = {**NETWORK, "private_subnet_cidr": f"10.0.16.0/{prefix_length}"}
    data = content(network=network, **groups(CONTROLLER, {**WORKERS, "count": nodes - 1}))
    assert broken(data) == ([("addresses", "network.private_subnet_cidr")] if over > 0 else [])


@given(st.integers(-5000, 500_000))
def test_lustre_capacity(capacity_gib: int):
    """Exactly 1200 and the multiples of 2400 pass."""
    allowed = capacity_gib == 1200 or capacity_gib in range(2400, 500_001, 2400)
    data = content(lustre={"source": "create", "capacity_gib": capacity_gib})
    assert broken(data) == ([] if allowed else [("created-lustre", "lustre.capacity_gib")])


@given(st.sampled_from(cluster_instance_types()))
def test_every_instance_type_passes(instance_type: str):
    """Every type that the API accepts for clusters passes as a compute group of one thread per core."""
    roomy = {**NETWORK, "private_subnet_cidr": "10.0.128.0/17"}
    data = content(network=roomy, **groups(CONTROLLER, {**WORKERS, "instance_type": instance_type}))
    assert broken(data) == []


# ---- names -------------------------------------------------------------------------------------

NAMES = st.from_regex(facts.CLUSTER_NAME_PATTERN, fullmatch=True).filter(
    lambda name: name.isascii() and len(name) <= facts.MAX_CLUSTER_NAME_LENGTH
)


@given(NAMES)
def test_physical_names_are_allowed(name: str):
    """Whatever the cluster's name is, AWS accepts the bucket's and the role's."""
    assert checks.training_bucket(bucket_prefix=names.bucket_prefix(name), on_destroy="retain") == []
    assert checks.execution_role(name=names.role_name(name)) == []


@given(NAMES, NAMES)
def test_names_differ_where_clusters_do(one: str, other: str):
    """Two clusters share no stack and no role."""
    for make in (names.foundation_stack, names.cluster_stack, names.role_name):
        assert (make(one) == make(other)) == (one == other)


def test_long_names_differ():
    """Two long names that begin alike stay two in buckets and roles."""
    one, other = "a" * 62 + "b", "a" * 62 + "c"
    assert names.role_name(one) != names.role_name(other)
    assert names.bucket_prefix(one) != names.bucket_prefix(other)


def test_tags_say_which_cluster():
    """The user's tags and the cluster's own are on everything."""
    settings = Settings.model_validate(content(tags={"team": "llm"}))
    assert names.tags(settings) == {"team": "llm", "podwright:cluster": "demo"}
