"""Hundreds of wrong files and dozens of unusual ones, each a change of one value of a good file."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden import CASES

from podwright.check.checked_settings import check_document
from podwright.check.document import Document
from podwright.check.findings import Finding, Level, json_document, render
from podwright.checkout import ROOT
from podwright.operations.output import to_json

BASE = (CASES / "base.yaml").read_text(encoding="utf-8")
ACCOUNT = "210987654321"
KEY = f"arn:aws:kms:us-west-2:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
PLAN = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:training-plan/h100"
LUSTRE = {
    "source": "existing",
    "dns_name": "fs-0a1b2c3d4e5f60718.fsx.us-west-2.amazonaws.com",
    "mount_name": "fsx12345",
}
NETWORK = {
    "source": "existing",
    "vpc_id": "vpc-0a1b2c3d4e5f60718",
    "subnet_ids": ["subnet-0a1b2c3d4e5f60718"],
    "security_group_id": "sg-0a1b2c3d4e5f60718",
}
SUBNET = {
    "source": "existing_vpc",
    "vpc_id": "vpc-0a1b2c3d4e5f60718",
    "availability_zone_id": "usw2-az1",
    "private_subnet_cidr": "10.0.16.0/20",
    "nat_gateway_id": "nat-0a1b2c3d4e5f60718",
}
DATABASE = {
    "source": "existing",
    "endpoint": "slurm.abc.us-west-2.rds.amazonaws.com",
    "secret_arn": f"arn:aws:secretsmanager:us-west-2:{ACCOUNT}:secret:slurm",
}
WORKSPACE = {
    "source": "existing",
    "arn": f"arn:aws:aps:us-west-2:{ACCOUNT}:workspace/ws-1",
    "remote_write_url": "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1/api/v1/remote_write",
}
STATE = {"source": "s3", "bucket": "team-states"}
UNLINKED = {"automatic_backup_retention_days": 0, "on_destroy": "destroy"}
MOUNT = {"bucket": "corpora", "path": "/mnt/c4"}
LDAP = {"uri": "ldaps://ldap.corp.net", "search_base": "dc=corp,dc=net", "probe_user": "ada"}

# Values for a place. A place is its path in the file; the sections it needs come after it.
Values = dict[str, tuple[dict[str, Any], list[Any]]]

PATHS = [
    "fsx",
    "/",
    "//fsx",
    "/fsx/",
    "/fsx/..",
    "/../fsx",
    "/.",
    "/a b",
    "/fsx\t",
    "/ä",
    "",
    "~",
    "/etc",
    "/usr/local",
]
PATHS += [
    "/opt/ml",
    "/opt/ml/data",
    "/opt/slurm",
    "/opt/sagemaker",
    "/var/lib",
    "/tmp",  # noqa: S108
    "/proc/fsx",
    "/lib64",
    "/dev/shm",  # noqa: S108
]
BUCKETS = ["ab", "A-bucket", "a_b_c", "-abc", "abc-", "a..b", "10.1.2.3", "xn--abc", "sthree-abc", "abc-s3alias"]
BUCKETS += [
    "abc--ol-s3",
    "abc--usw2-az1--x-s3",
    "abc.mrap",
    "abc--table-s3",
    "amzn-s3-demo-abc",
    "a" * 64,
    "bucket/a",
    "bücket",
]
BLOCKS = ["10.0.0.0", "10.0.0.0/8", "10.0.0.0/29", "10.0.0.1/16", "10.0.0.0/255.255.0.0", "10.0.0.0/0.0.255.255", "ten"]
BLOCKS += [
    "127.0.0.0/16",
    "169.254.0.0/16",
    "224.0.0.0/16",
    "240.0.0.0/16",
    "0.0.0.0/16",
    "fd00::/64",
    "10.0.0/16",
    "010.0.0.0/16",
]
IDS = [
    "0a1b2c3d",
    "PREFIX-",
    "PREFIX-0a1b2c3",
    "PREFIX-0a1b2c3d4e5f6071",
    "PREFIX-0a1b2c3d4e5f607189",
    "PREFIX-0a1b2c3g",
]
IDS += ["PREFIX-0A1B2C3D", "PREFIX-0a1b_c3d", "other-0a1b2c3d", "PREFIX 0a1b2c3d", ""]
NAMES = ["-x", "x-", "a_b", "a b", "ä", "a" * 64, "", "a.b", "a/b"]
KEYS = [
    "alias/mine",
    KEY.replace("key/", "alias/"),
    KEY.replace("us-west-2", "eu-west-1"),
    KEY.replace("aws:kms", "aws-cn:kms"),
]
ROLES = [
    "nodes",
    f"arn:aws:iam::{ACCOUNT}:user/x",
    f"arn:aws-cn:iam::{ACCOUNT}:role/x",
    f"arn:aws-us-gov:iam::{ACCOUNT}:role/x",
]
ROLES += ["arn:aws:iam::12:role/x", "arn:aws:iam::111122223333:role/x"]
ZONES = ["us-west-2a", "use1-az1", "usw2", "usw2-lax1-az1", "az1", ""]
SECRETS = [
    "hf_" + "aB3" * 11,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "11ABCDEFG0" * 4,
    "glpat-" + "a1B2c" * 4,
    "AKIA" + "IOSF0DNN" * 2,
    "ASIA" + "IOSF0DNN" * 2,
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzzz",
    "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzzz",
    "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXk",
    "-----BEGIN EC PRIVATE KEY----- MHcCAQ -----END EC PRIVATE KEY-----",
    "https://user:hunter2@mirror.corp.net",
    "xoxb-1234567890-abcdef",
    "sk-proj-" + "a1B2" * 8,
    "npm_" + "a1B2" * 9,
    "nvapi-" + "a1B2_-" * 10,
    "dckr_pat_" + "a1B-_" * 5,
    "hvs." + "CAES" * 20,
    "a1B2c3D4e5F6g7.atlasv1." + "a1B2" * 16,
    "dapi" + "0a1b" * 8,
    "tskey-auth-" + "kA1b2" * 6,
    "sk_live_" + "a1B2" * 6,
    "SG." + "a1" * 11 + "." + "b" * 43,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + "a1B2" * 10,
    "IQoJb3JpZ2luX2VjE" + "a1B2" * 40,
    "ABSK" + "a1B2" * 20,
    "AccountKey=" + "a1" * 43 + "==",
    "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ" + "AAAB" * 20,
    "MIIEvgIBADANBgkqhkiG9w0BAQEFAASC" + "a1B2" * 20,
    "AGE-SECRET-KEY-1" + "QZ" * 29,
    "PuTTY-User-Key-File-3: ssh-ed25519 Private-Lines: 1 AAAAIGh1bnRlcjI",
]
POOL = {"usw2-az1": "10.0.1.0/28", "usw2-az2": "10.0.1.16/28"}
OWN = {"source": "existing", "name": "sagemaker-mine"}
FILE_SYSTEM = "fs-0a1b2c3d4e5f60718"


def links(*uris: str, path: str = "/a{}", **values: Any) -> dict[str, Any]:
    """Return a created file system with a folder for each URI."""
    folders = [{"path": path.format(number), "s3_uri": uri, **values} for number, uri in enumerate(uris)]
    return {"source": "create", **UNLINKED, "data_repositories": folders}


def statement(**values: Any) -> list[dict[str, Any]]:
    """Return a statement of a role."""
    return [{"actions": ["s3:GetObject"], "resources": ["*"], **values}]


def conditions(*given: tuple[str, str, list[str]]) -> list[list[dict[str, Any]]]:
    """Return a statement for each condition."""
    names = ("test", "variable", "values")
    return [statement(conditions=[dict(zip(names, condition, strict=True))]) for condition in given]


def ids(prefix: str) -> list[str]:
    """Return wrong ids of a kind of resource."""
    return [given.replace("PREFIX", prefix) for given in IDS]


GROUP = "cluster.instance_groups.1."
WRONG: Values = {
    "name": ({}, [*NAMES, None, [], {}]),
    "region": (
        {},
        [
            "us-west2",
            "US-WEST-2",
            "oregon",
            "",
            "us-gov-west-1",
            "mx-central-1",
            "cn-north-1",
            "eu-west-3",
            "me-south-1",
        ],
    ),
    "tags.podwright:cluster": ({}, ["mine"]),
    "tags.Podwright:x": ({}, ["mine"]),
    "tags.aws:x": ({}, ["mine"]),
    "tags.AWS:x": ({}, ["mine"]),
    "tags.token": ({}, [*SECRETS, "${x}", "%{if}", "a;b", "x" * 257]),
    "lustre.mount_path": ({}, PATHS),
    "openzfs.mount_path": ({"openzfs": {"source": "create"}}, PATHS),
    "nodes.scratch.mount_path": ({"nodes": {"scratch": {}}}, PATHS),
    "nodes.s3_mounts.0.path": ({"nodes": {"s3_mounts": [MOUNT]}}, PATHS),
    "nodes.s3_mounts.0.bucket": ({"nodes": {"s3_mounts": [MOUNT]}, "state": STATE}, [*BUCKETS, "team-states"]),
    "nodes.s3_mounts.0.prefix": ({"nodes": {"s3_mounts": [MOUNT]}}, ["/a/", "a", "a//b/", "a*/"]),
    "lustre.data_repositories": (
        {},
        [
            [{"path": path, "s3_uri": uri}]
            for path, uri in (
                ("/a/..", "s3://corpora"),
                ("/./a", "s3://corpora"),
                ("a", "s3://corpora"),
                ("/a", "corpora"),
            )
        ]
        + [
            [{"path": "/a", "s3_uri": f"s3://{bucket}"}]
            for bucket in ("a..b", "corpora/../x", "corpora/./x", "b-s3alias")
        ],
    ),
    "bucket": (
        {},
        [
            {"source": "existing", "name": name}
            for name in ["Scripts", *(f"sagemaker-x{b}" for b in ("..a", "-s3alias", "_", "-"))]
        ],
    ),
    "state.bucket": ({"state": STATE}, [*BUCKETS, "sagemaker-podwright-demo-20261122000000000000000001"]),
    "state.key_arn": ({"state": STATE}, KEYS),
    "key": ({}, [{"source": "existing", "arn": arn} for arn in KEYS]),
    "role": ({}, [{"source": "existing", "arn": arn} for arn in ROLES]),
    "network.cidr": ({}, BLOCKS),
    "network.private_subnet_cidr": ({}, [*BLOCKS, "10.0.0.0/24", "10.1.0.0/20"]),
    "network.secondary_cidrs": ({}, [[block] for block in [*BLOCKS, "192.168.0.0/16", "198.19.0.0/16", "10.0.0.0/16"]]),
    "network.availability_zone_id": ({}, ZONES),
    "network.vpc_id": ({"network": NETWORK}, ids("vpc")),
    "network.security_group_id": ({"network": NETWORK}, ids("sg")),
    "network.subnet_ids": (
        {"network": NETWORK},
        [[], [*NETWORK["subnet_ids"]] * 2, *([given] for given in ids("subnet"))],
    ),
    "network.nat_gateway_id": ({"network": SUBNET}, ids("nat")[1:-1]),
    "accounting.subnet_cidrs": (
        {"accounting": {"source": "create"}},
        [{"usw2-az1": "10.0.1.0/28"}, {"use1-az1": "10.0.1.0/28", "usw2-az2": "10.0.1.16/28"}]
        + [{"usw2-az1": block, "usw2-az2": "10.0.1.16/28"} for block in BLOCKS],
    ),
    "accounting.endpoint": ({"accounting": DATABASE}, ["db:3306", "https://db", "", "-db"]),
    "accounting.secret_arn": ({"accounting": DATABASE}, ["slurm", DATABASE["secret_arn"].replace("west", "east")]),
    "prometheus.arn": (
        {"prometheus": WORKSPACE, "nodes": {"observability": {}}},
        ["ws-1", WORKSPACE["arn"].replace("west", "east")],
    ),
    "lustre.dns_name": ({"lustre": LUSTRE}, ["fsx", "10.0.0.1", LUSTRE["dns_name"].replace("west-2", "east-1"), ""]),
    "lustre.mount_name": ({"lustre": LUSTRE}, ["/fsx", "toolongname", ""]),
    "lustre.capacity_gib": ({}, [0, -1200, 1000, 1201, 3600, "1TiB", ""]),
    "nodes.ldap.uri": (
        {"nodes": {"ldap": LDAP}},
        ["ldap.corp.net", "https://ldap.corp.net", "ldaps://a:b@ldap.corp.net", ""],
    ),
    f"{GROUP}name": ({}, [*NAMES, "controller", "Controller", "CONTROLLER"]),
    f"{GROUP}role": ({}, ["worker", "Compute", "controller", "login", ""]),
    f"{GROUP}instance_type": ({}, ["p5.48xlarge", "ml.p5", "ml.p5.48xlage", "ML.P5.48XLARGE", "", "ml.t2.nano"]),
    f"{GROUP}count": ({}, [-1, 6759, "two", 1.5, "1e3", ""]),
    f"{GROUP}partition": ({}, ["dev", "DEFAULT", "a b", "a/b", "", "-", "gpu,cpu"]),
    f"{GROUP}volume_gib": ({}, [-1, 16385, "500GB"]),
    f"{GROUP}capacity": ({}, ["spot", "reserved", "Spot"]),
    f"{GROUP}training_plan_arn": ({}, [PLAN, PLAN.replace("west", "east"), "h100"]),
    f"{GROUP}subnet_ids": ({}, [["subnet-0a1b2c3d"] * 2, *([given] for given in ids("subnet"))]),
    f"{GROUP}image_id": ({}, ["ubuntu", "ami-1", "ami-xyzxyzxyz"]),
    f"{GROUP}key_arn": ({}, KEYS),
    f"{GROUP}deep_health_checks": ({f"{GROUP}count": 1}, [["instance-connectivity"], ["stress"]]),
}
# What AWS, Linux or Slurm refuse although each value alone looks right.
LATER: Values = {
    "name": ({"network.internet": "nat"}, ["sg-demo", "SG-demo"]),
    "tags": ({"accounting": {"source": "create", "subnet_cidrs": POOL}}, [{"rds:x": "a"}, {"a": "rds:x"}]),
    "tags.Team": ({"tags": {"team": "llm"}}, ["llm"]),
    "role": (
        {},
        [
            {"source": "existing", "arn": ROLES[1].replace("user", "role"), key: f"arn:aws:iam::{'3' * 12}:role/x"}
            for key in ("controller_arn", "login_arn")
        ],
    ),
    "role.policy_arns": (
        {"role": {"source": "create", "permissions_boundary_arn": f"arn:aws:iam::{ACCOUNT}:policy/b"}},
        [[f"arn:aws:iam::{'3' * 12}:policy/b"]],
    ),
    "role.statements": (
        {},
        [
            *(statement(resources=[arn]) for arn in ("arn:aws:s3", "arn:x:s3:::y", "arn:aws:s3:::", "s3://a")),
            *conditions(("StringEqals", "aws:x", ["a"]), ("StringEquals", "", ["a"]), ("Bool", "aws:x", [])),
            *conditions(("NullIfExists", "aws:x", ["a"]), ("StringEquals", "nonsense", ["a"])),
            [*statement(resources=[f"arn:aws:s3:::bucket-number-{number}/*" for number in range(200)])],
        ],
    ),
    "lustre.dns_name": (
        {"lustre": LUSTRE},
        [f"{FILE_SYSTEM}.efs.us-west-2.amazonaws.com", f"{FILE_SYSTEM}.corp.net"]
        + [LUSTRE["dns_name"] + end for end in (":/fsx", "@tcp:/fsx", ";reboot", " ")],
    ),
    "openzfs": ({"lustre": LUSTRE}, [{"source": "existing", "dns_name": LUSTRE["dns_name"]}]),
    "accounting.secret_arn": ({"accounting": DATABASE}, [DATABASE["secret_arn"] + end for end in ("*", "?", " a")]),
    "nodes.ldap.bind_secret_arn": (
        {"nodes": {"ldap": {**LDAP, "bind_dn": "cn=a,dc=b"}}},
        [f"arn:aws:secretsmanager:us-west-2:{ACCOUNT}:secret:*"],
    ),
    "nodes.ldap.access_filter": ({"nodes": {"ldap": LDAP}}, ["(&(a=b)(c=d)", "(a=b))", "(a)(b)", "()()"]),
    "nodes.groups": ({}, [[{"name": name, "gid": 2001}] for name in ("disk", "shadow", "lxd", "kvm", "_apt", "games")]),
    "nodes.users": (
        {},
        [
            [{"name": "ada", "uid": 2001}, {"name": "bob", "uid": 2002, "home": "/fsx/home/ada/x"}],
            [{"name": "ada", "uid": 2001, "home": "/fsx/data"}],
        ],
    ),
    "nodes.pam_slurm_adopt.admins": ({}, [["a b"], ["; reboot"], ["nobody-known"], [""], ["-x"]]),
    "nodes.metadata_access.users": ({}, [["a b"], ["}"], ["nobody-known"], [""]]),
    "nodes.slurm.settings": ({}, [{"MaxJobCount": "9", "maxjobcount": "8"}]),
    "nodes.s3_mounts": (
        {"bucket": OWN},
        [[{**MOUNT, "bucket": OWN["name"], "prefix": "podwright-demo/bundle/", "read_only": False}]],
    ),
    "lustre": (
        {"bucket": OWN, "state": STATE},
        [
            links("s3://team-states/x"),
            links("s3://corpora/x", "s3://corpora/x/"),
            {**links("s3://corpora"), "storage_type": "INTELLIGENT_TIERING"},
            *(links(f"s3://sagemaker-mine{end}", export_changes=True) for end in ("", "/podwright-demo")),
            *(
                links(f"s3://sagemaker-mine/podwright-demo/{end}", export_changes=True)
                for end in ("lifecycle", "training/x", "bundle/")
            ),
        ],
    ),
    "lustre.mount_path": ({}, ["/opt/dlami/nvme", "/data/" + "a" * 256, "/" + "a/" * 600 + "b"]),
    "state.region": ({"state": STATE}, ["oregon", "us-west2", "cn-north-1", ""]),
    "prometheus.remote_write_url": (
        {"prometheus": WORKSPACE, "nodes": {"observability": {}}},
        [
            WORKSPACE["remote_write_url"].replace(*words)
            for words in (("ws-1", "ws-2"), ("us-west-2", "eu-west-1"), ("us-west-2.amazonaws", "evil"))
        ],
    ),
    "notices.email": (
        {"notices": {}},
        ["a@b..c", "mailto:a@b.co", "a@b.co;", "a@b.co.", "a@-b.co", "a,b@c.de", "ä@b.co", "a@b,c.de", "a@b.co>"],
    ),
    "cluster.slurm.source_s3_uri": (
        {"cluster.slurm": {"source": "existing"}, "training": {"source": "none"}},
        [f"s3://sagemaker-{end}" for end in ("../x", "A_B/x", "x/../y", "x//y", "x/" + "a" * 1024)],
    ),
    f"{GROUP}count": ({"network.private_subnet_cidr": "10.0.16.0/28"}, [10]),
    f"{GROUP}scheduled_update.rollback_alarms": (
        {f"{GROUP}scheduled_update": {"schedule": "cron(0 3 ? * SUN *)"}},
        [[""], [" "], ["a" * 256]],
    ),
}

GIANT = {f"{GROUP}instance_type": "ml.p5.48xlarge", "network.private_subnet_cidr": "10.0.64.0/18"}
UNUSUAL: Values = {
    f"{GROUP}volume_gib": ({}, [0]),  # HyperPod's own root volume alone
    "name": ({}, ["a", "A", "0", "no", "1e3", "a--b", "a" * 63, "Demo-9"]),
    "tags.zip": (
        {},
        [
            "0042",
            "",
            "größe 1",
            "a=b:c/d+e@f",
            "true",
            "null-ish",
            "hf_short",
            "sk-learn-workers-for-eu-central",
            "x" * 256,
        ],
    ),
    "lustre.mount_path": (
        {},
        ["/data", "/mnt/a/b", "/opt/datasets", "/srv", "/fsx.v2", "/..fsx", "/fsx..", "/home2", "/optical", "/FSX"],
    ),
    "lustre.capacity_gib": ({}, [2400, "4800", 240_000, "1200.0", "1_200"]),
    "nodes.s3_mounts.0.bucket": ({"nodes": {"s3_mounts": [MOUNT]}}, ["abc", "a.b.c", "0-9", "a" * 63, "team-states-2"]),
    "network.cidr": ({}, ["10.0.0.0/16"]),
    "network.secondary_cidrs": (
        {},
        [["100.64.0.0/16"], ["100.64.0.0/16", "100.65.0.0/24", "10.1.0.0/16", "10.2.0.0/28"]],
    ),
    "network.availability_zone_id": ({}, ["usw2-az1", "usw2-az2", "usw2-az4"]),
    f"{GROUP}name": ({}, ["WORKERS", "0", "controller2", "a" * 63]),
    f"{GROUP}count": ({}, [0, 1, "2"]),
    f"{GROUP}partition": ({}, ["GPU", "no", "0", "dev2", "a_b", "a.b"]),
    f"{GROUP}subnet_ids": ({}, [["subnet-0a1b2c3d"], ["subnet-0a1b2c3d4e5f60718", "subnet-0a1b2c3d"]]),
    f"{GROUP}training_plan_arn": (GIANT, [PLAN, f"{PLAN}-2"]),
    f"{GROUP}deep_health_checks": ({**GIANT, f"{GROUP}count": 2}, [["instance-stress", "instance-connectivity"]]),
    f"{GROUP}scheduled_update.schedule": (
        {f"{GROUP}scheduled_update": {}},
        ["cron(30 23 1 */2 ? *)", "cron(0 0 ? * 1#1 *)", "cron(0 3 ? * L 2030)"],
    ),
    "role.statements": (
        {},
        [
            statement(resources=["arn:aws:ecr:us-east-1:763104351884:repository/*", "arn:aws:bedrock:*::foundation/*"]),
            statement(resources=["arn:aws:s3:::corpora/my data/*", "arn:aws:s3:::corpora"]),
            *conditions(("ForAllValues:StringLikeIfExists", "s3:prefix", ["a/*"]), ("Null", "aws:TagKeys", ["true"])),
            *conditions(("ArnNotEquals", "aws:PrincipalArn", ["x"]), ("NotIpAddress", "aws:SourceIp", ["10.0.0.0/8"])),
            *conditions(("NumericLessThanEquals", "s3:max-keys", ["10"]), ("Bool", "aws:SecureTransport", ["true"])),
        ],
    ),
    "role.permissions_boundary_arn": (
        {"role": {"source": "create", "policy_arns": [f"arn:aws:iam::{ACCOUNT}:policy/team/a"]}},
        ["arn:aws:iam::aws:policy/PowerUserAccess", f"arn:aws:iam::{ACCOUNT}:policy/org/b"],
    ),
    "accounting.secret_arn": (
        {"network": NETWORK, "accounting": DATABASE},
        [DATABASE["secret_arn"] + end for end in ("/a+b=c.d@e_f", "!db-1")],
    ),
    "notices.email": ({"notices": {}}, ["a.b+c@corp.co.uk", "o'brien@corp.net", "team@xn--bcher-kva.de"]),
    "lustre": (
        {"bucket": OWN},
        [links("s3://sagemaker-mine/podwright-demo/runs", "s3://corpora/x y/ü", export_changes=True)],
    ),
    "nodes.pam_slurm_adopt.admins": ({"nodes": {"users": [{"name": "ada", "uid": 2001}]}}, [["ada", "ubuntu"], []]),
    "nodes.ldap.access_filter": ({"nodes": {"ldap": LDAP}}, ["(&(a=b)(|(c=d)(e=f\\28x\\29)))"]),
    "state": ({}, [{**STATE, "region": "eu-west-1", "key_arn": KEY.replace("us-west-2", "eu-west-1")}]),
}


def put(data: Any, path: str, value: Any) -> None:
    """Set the value at a path; make the sections above it."""
    *above, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    for word in above:
        data = data.setdefault(word, {}) if isinstance(data, dict) else data[word]
    data[last] = value


def files(values: Values) -> Iterator[tuple[str, str]]:
    """Yield the place with its value, and the text of each file."""
    for place, (needed, choices) in values.items():
        for value in choices:
            data = yaml.safe_load(BASE)
            for path, section in needed.items():
                put(data, path, yaml.safe_load(yaml.safe_dump(section)))
            put(data, place, value)
            yield f"{place}: {value!r}", yaml.safe_dump(data, allow_unicode=True, width=10_000)


def findings(text: str) -> list[Finding]:
    """Return the findings of a file."""
    return list(check_document(Document.parse(text)).findings)


@pytest.mark.slow
def test_no_wrong_file_slips_through():
    """Each of more than 500 wrong files has an error, and every error has a place in the file."""
    wrong = {**dict(files(WRONG)), **dict(files(LATER))}
    assert len(wrong) >= 500
    found = {place: [item for item in findings(text) if item.level is Level.ERROR] for place, text in wrong.items()}
    assert [place for place, errors in found.items() if not errors] == []
    assert all(error.line for errors in found.values() for error in errors)


ROLE_OF_STATEMENTS = {
    "source": "create",
    "statements": [
        {
            "actions": ["s3:GetObject"],
            "resources": ["*"],
            "conditions": [{"test": "StringEquals", "variable": "aws:SourceVpc", "values": ["vpc-1"]}],
        }
    ],
}
ODD = ["${var.x}", None, -1, [None], {"x": 1}]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value below a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def mistaken(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the data with each value replaced by odd ones, each key misspelt, and each value left out."""
    for *above, last in places(data):
        for change in [*ODD, "misspelt", "left out"]:
            changed = copy.deepcopy(data)
            inside = reduce(getitem, above, changed)
            if change == "left out":
                del inside[last]
            elif change != "misspelt":
                inside[last] = copy.deepcopy(change)
            elif isinstance(inside, dict):
                inside[f"{last}x"] = inside.pop(last)
            yield changed


@pytest.mark.slow
@pytest.mark.parametrize("example", ["production", "slurm_by_api"])
def test_no_mistake_ends_the_check(example: str):
    """Each of thousands of odd values has findings or none; no finding shows what stands in for a wrong value."""
    data = yaml.safe_load((ROOT / "examples" / example / "cluster.yaml").read_text(encoding="utf-8"))
    data["role"] = ROLE_OF_STATEMENTS
    for changed in mistaken(data):
        text = yaml.safe_dump(changed, allow_unicode=True, width=10_000)
        assert "${unknown}" not in "".join(item.message + item.hint for item in findings(text))


def test_unusual_files_are_right():
    """Each of more than 40 unusual files has not even a warning."""
    unusual = dict(files(UNUSUAL))
    assert len(unusual) >= 40
    assert {
        place: found for place, text in unusual.items() if (found := [item.message for item in findings(text)])
    } == {}


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:5])
def test_a_secret_is_never_echoed(secret: str):
    """Whatever is wrong with a file, no line printed about it has the secret."""
    hidden = "hunter2" if "hunter2" in secret else secret[-12:]
    for place, value in (
        *((place, secret) for place in ("name", "region", "tags.token", "lustre.source", "nodes.motd", "training")),
        ("tags", {secret: secret}),
        ("nodes.users", [{"name": "ada", "uid": 2001, "ssh_keys": [secret]}]),
    ):
        data = yaml.safe_load(BASE)
        put(data, place, value)
        source = Document.parse(yaml.safe_dump(data, width=10_000))
        found = check_document(source).findings
        assert "secret" in {item.code for item in found}, place
        assert hidden not in render(found, file=source.file, text=source.text)
        assert hidden not in to_json(json_document(found))


@pytest.mark.parametrize("spelt", ['"\\x68f_{}"', '"hf_\\\n    {}"'], ids=["escape", "two lines"])
def test_a_secret_in_yaml_escapes_is_found(spelt: str):
    """A secret that only YAML's own spelling hides from a search is refused and not shown, too."""
    source = Document.parse(BASE + "tags:\n  token: " + spelt.format("aB3" * 11) + "\n")
    (found,) = check_document(source).findings
    assert (found.code, found.path) == ("secret", ("tags", "token"))
    assert "aB3" not in render([found], file=source.file, text=source.shown)


@pytest.mark.parametrize(
    "section",
    [
        "accounting: {source: existing, endpoint: db.llm.test, secret_arn: hunter2}",
        "nodes: {ldap: {uri: 'ldaps://ldap.llm.test', search_base: dc=llm, bind_dn: cn=a, bind_secret_arn: hunter2}}",
    ],
)
def test_a_password_in_place_of_its_secrets_arn_is_not_shown(section: str):
    """A value that may be the password itself is refused without being repeated."""
    source = Document.parse(BASE + section)
    found = check_document(source).findings
    assert any("secret_arn: got" in item.message for item in found)
    assert "hunter2" not in render(found, file=source.file, text=source.shown) + to_json(json_document(found))


def test_a_secret_in_a_hook_is_found(tmp_path: Path):
    """A script that nodes download holds no token either; its line is named, and the token is not shown."""
    (tmp_path / "login.sh").write_text(
        "#!/bin/bash\nexport A=1\nexport HF_TOKEN=hf_" + "aB3" * 11 + "\n", encoding="utf-8"
    )
    source = Document.parse(BASE + "nodes:\n  hooks: [{script: login.sh}]\n", file=tmp_path / "cluster.yaml")
    (found,) = check_document(source).findings
    assert (found.code, found.message) == ("hooks", "script: line 3 of login.sh holds a Hugging Face token")
