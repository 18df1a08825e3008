"""The app: settings in, stacks and a wheel out."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from setuptools.config.pyprojecttoml import read_configuration

from podwright.check.load import load
from podwright.resource_types import BY_NAME, CLUSTER, RESOURCE_TYPES, resource_type
from podwright.settings import names
from podwright_bootstrap.software.requirements import with_added
from podwright_constructs import facts
from podwright_stacks.wheel import NOT_SOURCES, WheelError, build_wheel
from podwright_testing.provider import running_provider
from podwright_testing.workspace import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted(file.parent for file in (REPOSITORY / "examples").glob("*/cluster.yaml"))
SETTINGS: dict[str, Any] = yaml.safe_load((REPOSITORY / "cluster.yaml").read_text(encoding="utf-8"))
EXISTING: dict[str, Any] = {
    "network": {
        "source": "existing",
        "vpc_id": "vpc-0123456789abcdef0",
        "subnet_ids": ["subnet-0123456789abcdef0"],
        "security_group_id": "sg-0123456789abcdef0",
    },
    "lustre": {
        "source": "existing",
        "dns_name": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "mount_name": "abcdefgh",
    },
    "bucket": {"source": "existing", "name": "sagemaker-mine"},
    "role": {"source": "existing", "arn": "arn:aws:iam::210987654321:role/nodes"},
    "training": {"source": "none"},
}
RunApp = Callable[..., subprocess.CompletedProcess[str]]


class Example(NamedTuple):
    """An example's settings file and the folder where it was synthesized."""

    config: Path
    folder: Path


def app_in(
    folder: Path, settings: Mapping[str, Any], *, checkout: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run main.py in a folder with these settings."""
    config = folder / "my.yaml"
    config.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
    sources = [
        checkout,
        *(checkout / name for name in ("common", "constructs", "lifecycle_scripts", "stacks", "training")),
    ]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDKTF_"))}
    return subprocess.run(
        [sys.executable, str(checkout / "main.py")],
        cwd=folder,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "PODWRIGHT_CONFIG": str(config),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def run_app(tmp_path: Path) -> RunApp:
    """Run main.py in an empty folder with these settings."""
    return partial(app_in, tmp_path)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the app was run with the checkout's cluster.yaml; it printed nothing."""
    folder = tmp_path_factory.mktemp("demo")
    answer = app_in(folder, SETTINGS)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def on_existing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the app was run with settings of which every part exists."""
    folder = tmp_path_factory.mktemp("existing")
    answer = app_in(folder, SETTINGS | EXISTING)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda folder: str(folder.name))
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """An example and the folder where the app was run with it."""
    folder = tmp_path_factory.mktemp("example")
    config = request.param / "cluster.yaml"
    answer = app_in(folder, yaml.safe_load(config.read_text(encoding="utf-8")))
    assert answer.returncode == 0, answer.stderr
    return Example(config, folder)


def test_an_output_folder_that_cannot_be_made_is_one_line(run_app: RunApp, tmp_path: Path) -> None:
    """CDKTF_OUTDIR below a missing folder is one line that names it, not a traceback of Node."""
    answer = run_app(SETTINGS, CDKTF_OUTDIR=str(tmp_path / "absent/out"))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert f"cannot write Terraform's JSON to {tmp_path / 'absent/out'}: No such file or directory" in answer.stderr


def synthesized(folder: Path, stack: str) -> dict[str, Any]:
    """The JSON of a stack of the demo cluster."""
    path = folder / "cdktf.out" / "stacks" / f"podwright-demo-{stack}" / "cdk.tf.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def managed(stack: Mapping[str, Any]) -> set[str]:
    """Types of the resources in a stack."""
    return set(stack.get("resource", {}))


@pytest.mark.terraform
def test_examples_are_valid_terraform(example: Example, terraform: Mapping[str, str]) -> None:
    """The real Terraform and AWS provider accept both stacks of every example, and the lock beside them as it is."""
    stacks = sorted((example.folder / "cdktf.out" / "stacks").iterdir())
    assert [folder.name.rpartition("-")[2] for folder in stacks] == ["cluster", "foundation"]
    for folder in stacks:
        lock = (folder / ".terraform.lock.hcl").read_text(encoding="utf-8")
        run_terraform(folder, terraform, "init", "-backend=false", "-lockfile=readonly")
        assert (folder / ".terraform.lock.hcl").read_text(encoding="utf-8") == lock
    with running_provider(stacks[0], terraform) as provider:
        for folder in stacks:
            verdict = run_terraform(folder, {**terraform, **provider}, "validate", "-json")
            assert json.loads(verdict)["diagnostics"] == []


@pytest.mark.terraform
def test_the_longest_name_is_valid_terraform(run_app: RunApp, tmp_path: Path, terraform: Mapping[str, str]) -> None:
    """Whatever is named after the cluster stays within AWS's limits, as the provider knows them, in any region."""
    production = (REPOSITORY / "examples/production/cluster.yaml").read_text(encoding="utf-8")
    for here, there in (("us-east-1", "ap-southeast-4"), ("use1-az6", "apse4-az1"), ("use1-az4", "apse4-az2")):
        production = production.replace(here, there)
    settings = yaml.safe_load(production)
    notices = {**settings["notices"], "idle_hours": 6}
    answer = run_app(settings | {"name": "a" * facts.MAX_CLUSTER_NAME_LENGTH, "notices": notices})
    assert answer.returncode == 0, answer.stderr
    for folder in (tmp_path / "cdktf.out" / "stacks").iterdir():
        run_terraform(folder, terraform, "init", "-backend=false")
        assert json.loads(run_terraform(folder, terraform, "validate", "-json"))["diagnostics"] == []


def run_terraform(folder: Path, environment: Mapping[str, str], *arguments: str) -> str:
    """Return what Terraform prints."""
    command = ["terraform", *arguments]
    answer = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.slow
def test_the_app_leaves_its_traces_where_it_runs(demo: Path) -> None:
    """Output and Terraform's state belong to the working directory, never to the checkout, and nothing is printed."""
    for name in ("foundation", "cluster"):
        state = Path(synthesized(demo, name)["terraform"]["backend"]["local"]["path"])
        assert state == demo / f"terraform.podwright-demo-{name}.us-west-2.tfstate"


@pytest.mark.slow
def test_two_checkouts_give_the_same_stacks(run_app: RunApp, tmp_path: Path) -> None:
    """Synthesis is a function of the settings: another run, from another place, writes the same bytes."""
    elsewhere = tmp_path / "another" / "checkout"
    for part in ("podwright", "stacks", "common", "constructs", "lifecycle_scripts", "training"):
        shutil.copytree(REPOSITORY / part, elsewhere / part, ignore=NOT_SOURCES)
    shutil.copyfile(REPOSITORY / "main.py", elsewhere / "main.py")
    written = []
    for checkout in (REPOSITORY, elsewhere):
        answer = run_app(SETTINGS, checkout=checkout)
        assert answer.returncode == 0, answer.stderr
        written.append({file: file.read_bytes() for file in (tmp_path / "cdktf.out" / "stacks").rglob("*.json")})
        shutil.rmtree(tmp_path / "cdktf.out")
    assert len(written[0]) >= 2
    assert written[0] == written[1]


def test_nodes_get_one_lock_with_the_packages_that_the_cluster_adds(run_app: RunApp, tmp_path: Path) -> None:
    """The hash of the lock, and so the environment's name, changes with the packages."""
    added = f"wandb==0.1 --hash=sha256:{'0' * 64}\n"
    (tmp_path / "packages.lock").write_text(added, encoding="utf-8")
    answer = run_app(SETTINGS | {"training": {"source": "bundled", "requirements": "packages.lock"}})
    assert answer.returncode == 0, answer.stderr
    lock = with_added((REPOSITORY / "training" / "requirements.lock").read_text(encoding="utf-8"), added)
    (written,) = tmp_path.rglob("wheels/requirements.lock")
    assert written.read_text(encoding="utf-8") == lock
    (stack,) = tmp_path.rglob(f"{SETTINGS['name']}-cluster/cdk.tf.json")
    assert hashlib.sha256(lock.encode()).hexdigest() in stack.read_text(encoding="utf-8")


def test_the_foundation_comes_first(demo: Path) -> None:
    """The cluster stack is deployed after the foundation and destroyed before it."""
    manifest = json.loads((demo / "cdktf.out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["stacks"]["podwright-demo-cluster"]["dependencies"] == ["podwright-demo-foundation"]
    assert manifest["stacks"]["podwright-demo-foundation"]["dependencies"] == []


def test_existing_resources_are_not_created(on_existing: Path) -> None:
    """If all parts exist, the foundation creates nothing, and the cluster uses them."""
    assert managed(synthesized(on_existing, "foundation")) == {"terraform_data"}  # the state's account and region
    cluster = synthesized(on_existing, "cluster")
    assert managed(cluster) == {"aws_s3_object", "aws_cloudcontrolapi_resource", "terraform_data"}
    (resource,) = cluster["resource"]["aws_cloudcontrolapi_resource"].values()
    for given in ("subnet-0123456789abcdef0", "sg-0123456789abcdef0", "arn:aws:iam::210987654321:role/nodes"):
        assert given in resource["desired_state"]


@pytest.mark.slow
def test_controllers_alone_read_secrets(run_app: RunApp, tmp_path: Path) -> None:
    """The policy of the controllers' role reads the directory's secret; no statement of another role names a secret."""
    secret = f"arn:aws:secretsmanager:{SETTINGS['region']}:210987654321:secret:ldap-abc"
    ldap = {"uri": "ldaps://ldap.corp.net", "search_base": "dc=corp,dc=net", "bind_dn": "cn=reader"}
    answer = run_app(SETTINGS | {"nodes": {"ldap": {**ldap, "bind_secret_arn": secret}}, "key": {"source": "create"}})
    assert answer.returncode == 0, answer.stderr
    foundation = synthesized(tmp_path, "foundation")
    documents = foundation["data"]["aws_iam_policy_document"]
    permissions = {  # without the hash in Terraform's names
        name.partition("_permissions")[0]: document for name, document in documents.items() if "_permissions" in name
    }
    assert set(permissions) >= {"controller_role", "login_role", "role"}
    readers = {
        name: [statement["resources"] for statement in document["statement"] if reads_secrets(statement)]
        for name, document in permissions.items()
    }
    assert {name: resources for name, resources in readers.items() if resources} == {"controller_role": [[secret]]}
    through = {name for name, document in permissions.items() if "secretsmanager." in json.dumps(document)}
    assert through == {"controller_role"}  # whose role alone decrypts with the key for Secrets Manager


def reads_secrets(statement: Mapping[str, Any]) -> bool:
    """Return whether a statement allows an action of Secrets Manager, or every action."""
    return any(action == "*" or action.startswith("secretsmanager:") for action in statement["actions"])


@pytest.mark.slow
def test_everything_carries_the_users_tags(run_app: RunApp, tmp_path: Path) -> None:
    """Tags of the settings are the provider's default tags, and the cluster's own, which the provider cannot tag."""
    assert run_app(SETTINGS | {"tags": {"team": "research"}}).returncode == 0
    for name in ("foundation", "cluster"):
        (provider,) = synthesized(tmp_path, name)["provider"]["aws"]
        assert provider["default_tags"][0]["tags"]["team"] == "research"
    (resource,) = synthesized(tmp_path, "cluster")["resource"]["aws_cloudcontrolapi_resource"].values()
    assert '"Key" = "team", "Value" = "research"' in resource["desired_state"]


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("role", [{"source": "create"}, EXISTING["role"]], ids=lambda role: role["source"])
def test_every_role_has_the_permissions_boundary_and_the_path(
    run_app: RunApp, tmp_path: Path, role: Mapping[str, str]
) -> None:
    """Also the roles of flow logs and log retention: landing zones admit no role without it."""
    boundary = "arn:aws:iam::210987654321:policy/boundary"
    changes = {
        "role": {**role, "permissions_boundary_arn": boundary, "path": "/teams/llm/"},
        "network": {**SETTINGS["network"], "flow_logs": "cloudwatch"},
        "logs": {"retention_days": 30},
    }
    answer = run_app(SETTINGS | changes)
    assert answer.returncode == 0, answer.stderr
    roles = [
        (resource.get("permissions_boundary"), resource.get("path"))
        for name in ("foundation", "cluster")
        for resource in synthesized(tmp_path, name)["resource"].get("aws_iam_role", {}).values()
    ]
    assert len(roles) >= (2 if role["source"] == "existing" else 4)
    assert set(roles) == {(boundary, "/teams/llm/")}


def test_everything_carries_its_construct_path(example: Example) -> None:
    """Every resource type has a row in the table, and every resource its construct path as a tag, or a reason."""
    settings = load(example.config)
    places = []
    for name in (names.foundation_stack(settings.name), names.cluster_stack(settings.name)):
        stack = json.loads((example.folder / "cdktf.out" / "stacks" / name / "cdk.tf.json").read_text(encoding="utf-8"))
        for kind, blocks in stack.get("resource", {}).items():
            paths = {block["//"]["metadata"]["path"]: block.get("tags", {}) for block in blocks.values()}
            assert kind in RESOURCE_TYPES, kind
            assert resource_type(kind).untagged or takes_tags(kind), kind
            if not resource_type(kind).untagged:
                assert {path: tags[names.CONSTRUCT_PATH_TAG] for path, tags in paths.items()} == {
                    path: path for path in paths
                }
            elif kind == CLUSTER:
                assert list(paths) == [names.cluster_tags(settings)[names.CONSTRUCT_PATH_TAG]]
            places += paths
    assert len(places) == len(set(places))


def takes_tags(kind: str) -> bool:
    """Return whether the binding of a type has the argument."""
    module = importlib.import_module(f"podwright_constructs.aws.{kind.removeprefix('aws_')}")
    (binding,) = (each for each in vars(module).values() if getattr(each, "TF_RESOURCE_TYPE", None) == kind)
    return "tags" in inspect.signature(binding.__init__).parameters


def test_what_is_found_by_name_can_be_looked_up() -> None:
    """An untagged type that is found by its name has a lookup, and no other untagged type has one."""
    untagged = [row for row in RESOURCE_TYPES.values() if row.untagged]
    assert [row.untagged == BY_NAME for row in untagged] == [row.find is not None for row in untagged]


@pytest.mark.slow
def test_a_stand_in_for_aws_is_addressed_as_it_needs(run_app: RunApp, tmp_path: Path, on_existing: Path) -> None:
    """AWS_ENDPOINT_URL, and nothing else, turns off what only the real AWS has."""
    special = {"s3_use_path_style": True, "skip_metadata_api_check": "true", "skip_region_validation": True}
    assert run_app(SETTINGS | EXISTING, AWS_ENDPOINT_URL="http://127.0.0.1:5000").returncode == 0
    for folder, expected in ((on_existing, {}), (tmp_path, special)):
        (provider,) = synthesized(folder, "foundation")["provider"]["aws"]
        assert {key: provider[key] for key in special if key in provider} == expected


def test_wrong_settings_end_the_app_with_findings(run_app: RunApp, tmp_path: Path) -> None:
    """Every problem is printed, nothing is synthesized, and there is no traceback."""
    answer = run_app(SETTINGS | {"name": "-demo", "lustre": {"source": "create", "capacity_gib": 1000}})
    assert answer.returncode == 1
    assert "capacity_gib" in answer.stderr
    assert "-demo" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "cdktf.out").exists()


def test_a_missing_file_ends_the_app_with_its_name(run_app: RunApp, tmp_path: Path) -> None:
    """A settings file that is not there is named, without a traceback."""
    answer = run_app(SETTINGS, PODWRIGHT_CONFIG=str(tmp_path / "absent.yaml"))
    assert answer.returncode == 1
    assert "absent.yaml" in answer.stderr
    assert "Traceback" not in answer.stderr


# ---- the wheel ---------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small Python project."""
    folder = tmp_path / "project"
    (folder / "thing").mkdir(parents=True)
    (folder / "thing" / "__init__.py").write_text('"""A thing."""\n')
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "thing"\nversion = "1"\n'
    )
    return folder


def test_same_sources_give_the_same_wheel(project: Path, tmp_path: Path) -> None:
    """Place, time, mode and caches of the sources do not change a byte of the wheel."""
    first = build_wheel(project, cache=tmp_path / "first").read_bytes()
    copy = tmp_path / "elsewhere"
    shutil.copytree(project, copy)
    (copy / "thing" / "__pycache__").mkdir()
    (copy / "thing" / "__pycache__" / "x.pyc").write_bytes(b"x")
    for file in copy.rglob("*.py"):
        file.chmod(0o700)
        os.utime(file, (1, 1))
    assert build_wheel(copy, cache=tmp_path / "second").read_bytes() == first


def test_other_sources_give_another_wheel(project: Path, tmp_path: Path) -> None:
    """A changed line is a changed wheel, also from the same cache."""
    first = build_wheel(project, cache=tmp_path / "cache").read_bytes()
    (project / "thing" / "__init__.py").write_text('"""Another thing."""\n')
    assert build_wheel(project, cache=tmp_path / "cache").read_bytes() != first


def test_building_leaves_the_project_alone(project: Path, tmp_path: Path) -> None:
    """No build folder, no metadata: the project is as it was."""
    before = sorted(project.rglob("*"))
    build_wheel(project, cache=tmp_path / "cache")
    assert sorted(project.rglob("*")) == before


def test_a_failed_build_says_why_and_leaves_nothing(project: Path, tmp_path: Path) -> None:
    """The error ends with the build's own words, and the cache does not keep half a wheel."""
    (project / "pyproject.toml").write_text("[project]\nname = 'thing'\nversion = 'not a version'\n")
    with pytest.raises(WheelError, match="version"):
        build_wheel(project, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_installed_wheel_has_no_sources_to_build(tmp_path: Path) -> None:
    """Outside a checkout the message names the folder that is missing."""
    with pytest.raises(WheelError, match="no sources at"):
        build_wheel(tmp_path / "absent", cache=tmp_path / "cache")


def test_a_wheel_contains_a_package_in_place_of_its_requirement(project: Path, tmp_path: Path) -> None:
    """Nodes install the trainer's wheel as one file: no index has our other distributions."""
    shared = tmp_path / "our_files"
    shared.mkdir()
    (shared / "__init__.py").write_text('"""Files."""\n')
    file = project / "pyproject.toml"
    file.write_text(f'{file.read_text()}dependencies = [\n    "our-files", # shared\n    "rich>=14",\n]\n')
    with file.open("a") as settings:
        settings.write('[tool.setuptools.packages.find]\ninclude = ["thing", "our_files"]\n')
    for contained, requirements in ((None, ["our-files", "rich>=14"]), (shared, ["rich>=14"])):
        with zipfile.ZipFile(build_wheel(project, cache=tmp_path / "cache", contained_package=contained)) as wheel:
            metadata = wheel.read("thing-1.dist-info/METADATA").decode()
            assert ("our_files/__init__.py" in wheel.namelist()) == bool(contained)
        assert re.findall("^Requires-Dist: (.*)$", metadata, re.MULTILINE) == requirements
    file.write_text(file.read_text().replace("our-files", "your-files"))
    with pytest.raises(WheelError, match="0 lines require our-files, need one"):
        build_wheel(project, cache=tmp_path / "cache", contained_package=shared)


def test_the_trainers_wheel_for_nodes_needs_none_of_ours(tmp_path: Path) -> None:
    """It imports without another wheel of ours, and says in its metadata that it needs none."""
    common = REPOSITORY / "common" / "podwright_common"
    path = build_wheel(REPOSITORY / "training", cache=tmp_path, contained_package=common)
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        assert "podwright-" not in "".join(re.findall("^Requires-Dist: .*$", wheel.read(name).decode(), re.MULTILINE))
        assert {file.name for file in common.glob("*.py")} <= {Path(file).name for file in wheel.namelist()}
    code = f"import sys; sys.path.insert(0, {str(path)!r}); from podwright_training import run_folder, errors"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, check=True)


def test_no_package_is_called_stacks() -> None:
    """Podwright's distribution installs podwright and podwright_stacks, and no top-level name of another project."""
    packages = read_configuration(REPOSITORY / "pyproject.toml")["tool"]["setuptools"]["packages"]
    assert {name.partition(".")[0] for name in packages} == {"podwright", "podwright_stacks"}


def test_constructs_distribution_does_not_shadow_pypis(tmp_path: Path) -> None:
    """The wheel of the constructs holds podwright_constructs with its data, and no top-level constructs."""
    wheel = build_wheel(REPOSITORY / "constructs", cache=tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    assert {name.split("/")[0] for name in files} == {
        "podwright_constructs",
        "podwright_constructs-0.1.0.dist-info",
    }
    package = {"instance_types.csv", "py.typed", "aws/vpc.py"}
    assert {f"podwright_constructs/{name}" for name in package} <= files
