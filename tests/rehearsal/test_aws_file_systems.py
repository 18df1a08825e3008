"""FSx for Lustre and OpenZFS in the stand-in: their lives, and what it refuses."""

import time

import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from podwright_constructs import checks
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_rehearsal.aws import AwsStandIn, lustre_limits, openzfs_limits
from podwright_rehearsal.aws.aws_errors import AwsError

pytestmark = pytest.mark.slow

TRANSITION_S = 0.5
THROUGHPUTS = st.integers(0, 1100) | st.sampled_from([50, 100, 125, 200, 250, 500, 1000])
CAPACITIES_GIB = st.integers(0, 100_000) | st.integers(0, 40).map(lambda steps: 1200 * steps)


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=TRANSITION_S) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def fsx(aws):
    return aws.client("fsx")


@pytest.fixture(scope="module")
def subnet(aws):
    return aws.client("ec2").describe_subnets()["Subnets"][0]


@pytest.fixture(scope="module")
def open_group(aws, subnet):
    """A security group through which Lustre passes."""
    ec2 = aws.client("ec2")
    group = ec2.create_security_group(GroupName="open", Description="-", VpcId=subnet["VpcId"])["GroupId"]
    permission = {"IpProtocol": "tcp", "FromPort": 980, "ToPort": 1023, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[permission])
    return group


@pytest.fixture
def request_of(subnet, open_group):
    """Makes a request that AWS accepts, with changes."""

    def make(*, capacity=1200, lustre=None, **changes):
        return {
            "FileSystemType": "LUSTRE",
            "StorageCapacity": capacity,
            "SubnetIds": [subnet["SubnetId"]],
            "SecurityGroupIds": [open_group],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 250,
                **(lustre or {}),
            },
            **changes,
        }

    return make


def described(fsx, file_system_id):
    return fsx.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"][0]


def wait_for(fsx, file_system_id, lifecycle):
    deadline = time.monotonic() + 600
    while described(fsx, file_system_id)["Lifecycle"] != lifecycle and time.monotonic() < deadline:
        time.sleep(0.05)
    return described(fsx, file_system_id)


def test_a_file_system_lives_from_creating_to_not_found(fsx, request_of):
    """CREATING, AVAILABLE, DELETING, then the error that Terraform waits for."""
    created = fsx.create_file_system(**request_of(Tags=[{"Key": "Name", "Value": "scratch"}]))["FileSystem"]
    file_system_id = created["FileSystemId"]
    assert created["Lifecycle"] == "CREATING"
    assert wait_for(fsx, file_system_id, "AVAILABLE")["Lifecycle"] == "AVAILABLE"
    assert fsx.delete_file_system(FileSystemId=file_system_id)["Lifecycle"] == "DELETING"
    with pytest.raises(fsx.exceptions.FileSystemNotFound, match=file_system_id):
        wait_for(fsx, file_system_id, "GONE")


def test_the_description_has_what_a_node_mounts(fsx, request_of, subnet):
    """DNS name, mount name, ARN and the configuration asked for."""
    created = fsx.create_file_system(**request_of(capacity=2400, lustre={"DataCompressionType": "LZ4"}))["FileSystem"]
    file_system_id = created["FileSystemId"]
    found = described(fsx, file_system_id)
    assert found["DNSName"] == f"{file_system_id}.fsx.us-west-2.amazonaws.com"
    assert found["ResourceARN"] == f"arn:aws:fsx:us-west-2:123456789012:file-system/{file_system_id}"
    assert found["VpcId"] == subnet["VpcId"]
    assert found["StorageCapacity"] == 2400
    lustre = found["LustreConfiguration"]
    assert lustre["MountName"] == created["LustreConfiguration"]["MountName"]
    assert len(lustre["MountName"]) == 8
    assert (lustre["DeploymentType"], lustre["PerUnitStorageThroughput"]) == ("PERSISTENT_2", 250)
    assert lustre["DataCompressionType"] == "LZ4"


def test_a_repeated_token_creates_nothing_new(fsx, request_of):
    """A request that is sent again after a lost answer is the same file system."""
    once = fsx.create_file_system(**request_of(ClientRequestToken="once"))["FileSystem"]
    again = fsx.create_file_system(**request_of(ClientRequestToken="once"))["FileSystem"]
    assert once["FileSystemId"] == again["FileSystemId"]


def test_tags_are_kept_changed_and_removed(fsx, request_of):
    """Tags given at creation, added and removed later."""
    created = fsx.create_file_system(**request_of(Tags=[{"Key": "a", "Value": "1"}]))["FileSystem"]
    arn = created["ResourceARN"]
    fsx.tag_resource(ResourceARN=arn, Tags=[{"Key": "b", "Value": "2"}])
    fsx.untag_resource(ResourceARN=arn, TagKeys=["a"])
    assert fsx.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    assert described(fsx, created["FileSystemId"])["Tags"] == [{"Key": "b", "Value": "2"}]


def test_capacity_grows_and_never_shrinks(fsx, request_of):
    """An update takes a larger allowed capacity, and nothing smaller or odd."""
    file_system_id = fsx.create_file_system(**request_of(capacity=2400))["FileSystem"]["FileSystemId"]
    fsx.update_file_system(FileSystemId=file_system_id, StorageCapacity=4800)
    assert described(fsx, file_system_id)["StorageCapacity"] == 4800
    for wrong in (2400, 5000):
        with pytest.raises(fsx.exceptions.BadRequest):
            fsx.update_file_system(FileSystemId=file_system_id, StorageCapacity=wrong)
    assert described(fsx, file_system_id)["StorageCapacity"] == 4800


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        ("BadRequest", "storage capacity 1000", {"capacity": 1000}),
        ("BadRequest", "storage capacity 3600", {"capacity": 3600}),
        ("BadRequest", "storage capacity 0", {"capacity": 0}),
        (
            "InvalidPerUnitStorageThroughput",
            "PerUnitStorageThroughput 300",
            {"lustre": {"PerUnitStorageThroughput": 300}},
        ),
        (
            "InvalidPerUnitStorageThroughput",
            "125",
            {"lustre": {"DeploymentType": "PERSISTENT_1", "PerUnitStorageThroughput": 125}},
        ),
        ("BadRequest", "cannot be given for SCRATCH_2", {"lustre": {"DeploymentType": "SCRATCH_2"}}),
        ("BadRequest", "StorageType for PERSISTENT_2 HDD", {"StorageType": "HDD"}),
        ("BadRequest", "2.10", {"FileSystemTypeVersion": "2.10"}),
        ("BadRequest", "emulates LUSTRE and OPENZFS, not WINDOWS", {"FileSystemType": "WINDOWS"}),
        ("BadRequest", "exactly one subnet", {"SubnetIds": []}),
        ("InvalidNetworkSettings", "subnet-0", {"SubnetIds": ["subnet-00000000000000000"]}),
        ("InvalidNetworkSettings", "sg-0", {"SecurityGroupIds": ["sg-00000000000000000"]}),
    ],
)
def test_refuses_what_aws_refuses(fsx, request_of, error, message, changes):
    """The error has AWS's members and names what was given."""
    with pytest.raises(ClientError, match=message) as refused:
        fsx.create_file_system(**request_of(**changes))
    assert isinstance(refused.value, getattr(fsx.exceptions, error))
    assert refused.value.response["Error"]["Code"] == error
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_refuses_a_security_group_that_keeps_lustre_out(aws, fsx, request_of, subnet):
    """Creating the file system before the rules of its group is the race that users of AWS run into."""
    ec2 = aws.client("ec2")
    closed = ec2.create_security_group(GroupName="closed", Description="-", VpcId=subnet["VpcId"])["GroupId"]
    with pytest.raises(fsx.exceptions.InvalidNetworkSettings, match="port 988") as refused:
        fsx.create_file_system(**request_of(SecurityGroupIds=[closed]))
    assert refused.value.response["InvalidSecurityGroupId"] == closed
    everything = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": closed}]}
    ec2.authorize_security_group_ingress(GroupId=closed, IpPermissions=[everything])
    assert fsx.create_file_system(**request_of(SecurityGroupIds=[closed]))["FileSystem"]["Lifecycle"] == "CREATING"


def test_instant_deletion_answers_as_already_done(tmp_path):
    """With the option, the first answer to a deletion is the last."""
    with AwsStandIn(directory=tmp_path, instant_deletion=True) as aws:
        fsx, ec2 = aws.client("fsx"), aws.client("ec2")
        subnet_id = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group_id = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
        everything = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}  # as in AWS, unlike in moto
        ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[everything])
        request = {"FileSystemType": "LUSTRE", "StorageCapacity": 1200, "SubnetIds": [subnet_id]}
        created = fsx.create_file_system(**request, LustreConfiguration={"DeploymentType": "SCRATCH_2"})["FileSystem"]
        with pytest.raises(fsx.exceptions.FileSystemNotFound):
            fsx.delete_file_system(FileSystemId=created["FileSystemId"])
        assert fsx.describe_file_systems()["FileSystems"] == []


def passes(request, limits=lustre_limits):
    try:
        limits.check(request)
    except AwsError:
        return False
    return True


@pytest.mark.parametrize(
    ("deployment", "storage", "throughput", "allowed"),
    [
        ("PERSISTENT_2", "SSD", 1000, {1200, 2400, 4800, 7200, 9600, 12000}),
        ("PERSISTENT_1", "SSD", 50, {1200, 2400, 4800, 7200, 9600, 12000}),
        ("SCRATCH_2", "SSD", None, {1200, 2400, 4800, 7200, 9600, 12000}),
        ("SCRATCH_1", "SSD", None, {1200, 2400, 3600, 7200, 10800}),
        ("PERSISTENT_1", "HDD", 12, {6000, 12000}),
        ("PERSISTENT_1", "HDD", 40, {1800, 3600, 5400, 7200, 9000, 10800}),
    ],
)
def test_capacities_are_those_of_the_documentation(deployment, storage, throughput, allowed):
    """Up to 12,000 GiB exactly the documented capacities pass."""
    lustre = {"DeploymentType": deployment, "PerUnitStorageThroughput": throughput}
    lustre |= {"DriveCacheType": "NONE"} if storage == "HDD" else {}
    assert {
        capacity
        for capacity in range(0, 12001, 100)
        if passes({"StorageCapacity": capacity, "StorageType": storage, "LustreConfiguration": lustre})
    } == allowed


@st.composite
def lustre_arguments(draw):
    """Arguments of a Lustre file system, as the check takes them: each right or wrong, often all right."""
    storage = draw(st.sampled_from(["SSD", "SSD", "HDD", "INTELLIGENT_TIERING"]))
    return {
        "deployment_type": draw(st.sampled_from(["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"])),
        "storage_type": storage,
        "capacity_gib": draw(CAPACITIES_GIB if storage != "INTELLIGENT_TIERING" else st.none() | CAPACITIES_GIB),
        "throughput_mbps_per_tib": draw(st.none() | THROUGHPUTS),
        "throughput_mbps": draw(st.none() | st.integers(-1, 3).map(lambda steps: 4000 * steps) | st.just(5000)),
        "read_cache": draw(st.booleans()),
        "file_system_type_version": draw(st.sampled_from(["2.15", "2.12", "2.10"])),
        "metadata_iops": draw(st.none() | st.sampled_from([1500, 6000, 12000, 18000, 192000, 204000])),
        "efa": draw(st.booleans()),
        "automatic_backup_retention_days": draw(st.sampled_from([0, 0, 7, 90, 91])),
        "weekly_maintenance_start_time": draw(st.sampled_from([None, "1:00:00", "7:23:59", "0:03:00", "1:24:00"])),
        "root_squash": draw(st.none() | st.sampled_from(["0:0", "65534:65534", "0:1", "1:4294967295", "01:1", "a:b"])),
        "log_level": draw(st.none() | st.sampled_from(["WARN_ERROR", "DISABLED", "ALL"])),
    }


def request_members(arguments):
    """Return the members of the request that do not depend on the type."""
    squash = {"RootSquash": arguments["root_squash"], "NoSquashNids": arguments.get("no_squash_nids", [])}
    members = {
        "WeeklyMaintenanceStartTime": arguments["weekly_maintenance_start_time"],
        "RootSquashConfiguration": squash if arguments["root_squash"] else None,
        "LogConfiguration": {"Level": arguments["log_level"]} if arguments["log_level"] else None,
    }
    return {name: value for name, value in members.items() if value is not None}


def lustre_request(arguments):
    """Return the request that the construct makes of the arguments."""
    deployment, storage = arguments["deployment_type"], arguments["storage_type"]
    tiering, newest = storage == "INTELLIGENT_TIERING", arguments["file_system_type_version"] == "2.15"
    lustre = {
        "DeploymentType": deployment,
        "AutomaticBackupRetentionDays": arguments["automatic_backup_retention_days"],
    }
    lustre |= request_members(arguments)
    per_tib = checks.lustre_throughput(LustreArguments(**arguments))
    iops = arguments["metadata_iops"] or (6000 if tiering else None)
    if deployment == "PERSISTENT_2" and newest and iops is None:
        lustre["MetadataConfiguration"] = {"Mode": "AUTOMATIC"}
    elif (deployment == "PERSISTENT_2" and newest) or arguments["metadata_iops"]:
        lustre["MetadataConfiguration"] = {"Mode": "USER_PROVISIONED", "Iops": iops}
    if per_tib is not None:
        lustre["PerUnitStorageThroughput"] = per_tib
    if tiering or arguments["throughput_mbps"] is not None:
        lustre["ThroughputCapacity"] = 4000 if arguments["throughput_mbps"] is None else arguments["throughput_mbps"]
    if storage == "HDD":
        lustre["DriveCacheType"] = "READ" if arguments["read_cache"] else "NONE"
    elif tiering or arguments["read_cache"]:
        lustre["DataReadCacheConfiguration"] = {"SizingMode": "PROPORTIONAL_TO_THROUGHPUT_CAPACITY"}
    if arguments["efa"]:
        lustre["EfaEnabled"] = True
    request = {
        "StorageType": storage,
        "FileSystemTypeVersion": arguments["file_system_type_version"],
        "LustreConfiguration": lustre,
    }
    capacity = {} if arguments["capacity_gib"] is None else {"StorageCapacity": arguments["capacity_gib"]}
    return request | capacity


PLAIN = {
    "deployment_type": "PERSISTENT_2",
    "storage_type": "SSD",
    "capacity_gib": 1200,
    "throughput_mbps_per_tib": 125,
    "throughput_mbps": None,
    "read_cache": False,
    "file_system_type_version": "2.15",
    "metadata_iops": None,
    "efa": False,
    "automatic_backup_retention_days": 0,
    "weekly_maintenance_start_time": None,
    "root_squash": None,
    "log_level": None,
}
TIERING = {"storage_type": "INTELLIGENT_TIERING", "capacity_gib": None, "throughput_mbps_per_tib": None}
HDD = {"deployment_type": "PERSISTENT_1", "storage_type": "HDD", "throughput_mbps_per_tib": 12, "capacity_gib": 6000}


@settings(max_examples=400)
@given(lustre_arguments())
@example(PLAIN)
@example({**PLAIN, "metadata_iops": 6000, "efa": True, "capacity_gib": 38400})
@example({**PLAIN, **HDD, "read_cache": True, "file_system_type_version": "2.12"})
@example({**PLAIN, **TIERING, "read_cache": True, "throughput_mbps": 8000})
@example({**PLAIN, "deployment_type": "SCRATCH_2", "throughput_mbps_per_tib": None, "file_system_type_version": "2.10"})
def test_the_constructs_and_the_stand_in_agree(arguments):
    """Two independent readings of AWS's pages accept and refuse the same Lustre file systems."""
    problems = checks.lustre_file_system(LustreArguments(**arguments))
    assert passes(lustre_request(arguments)) is not bool(problems), problems


PARTS = st.integers(0, 260).map(str) | st.tuples(st.integers(0, 256), st.integers(0, 256)).map("[{0[0]}-{0[1]}]".format)


@given(st.lists(PARTS, min_size=3, max_size=5), st.sampled_from(["@tcp", "@tcp", "@tcp", "@o2ib", ""]))
@example(["10", "0", "[16-31]", "[0-255]"], "@tcp")
@example(["10", "0", "[3-2]", "1"], "@tcp")
def test_the_constructs_and_the_stand_in_agree_on_clients(parts, network):
    """Two independent readings accept and refuse the same clients that root squash leaves out."""
    arguments = {**PLAIN, "root_squash": "65534:65534", "no_squash_nids": [".".join(parts) + network]}
    problems = checks.lustre_file_system(LustreArguments(**arguments))
    assert passes(lustre_request(arguments)) is not bool(problems), problems


@given(
    deployment=st.sampled_from(["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1", "X"]),
    throughput=st.integers(0, 11000)
    | st.integers(0, 12).map(lambda power: 2**power)
    | st.integers(1, 64).map((160).__mul__),
    capacity_gib=st.integers(0, 600_000) | st.sampled_from([63, 64, 524_288, 524_289]),
    days=st.sampled_from([-1, 0, 90, 91]),
)
@example(deployment="SINGLE_AZ_HA_1", throughput=3072, capacity_gib=64, days=0)
@example(deployment="MULTI_AZ_1", throughput=10240, capacity_gib=524_288, days=90)
def test_the_constructs_and_the_stand_in_agree_on_openzfs(deployment, throughput, capacity_gib, days):
    """Two independent readings of AWS's pages accept and refuse the same OpenZFS file systems."""
    arguments = OpenZfsArguments(
        deployment_type=deployment,
        capacity_gib=capacity_gib,
        throughput_mbps=throughput,
        automatic_backup_retention_days=days,
    )
    problems = checks.openzfs_file_system(arguments)
    openzfs = {"DeploymentType": deployment, "ThroughputCapacity": throughput, "AutomaticBackupRetentionDays": days}
    request = {"StorageCapacity": capacity_gib, "OpenZFSConfiguration": openzfs}
    assert passes(request, openzfs_limits) is not bool(problems)


@pytest.fixture
def openzfs_of(aws, open_group):
    """Makes a request for OpenZFS that AWS accepts, with changes."""
    subnets = aws.client("ec2").describe_subnets()["Subnets"]
    subnet_ids = [subnet["SubnetId"] for subnet in sorted(subnets, key=lambda subnet: subnet["AvailabilityZoneId"])]

    def make(*, subnets=1, **openzfs):
        return {
            "FileSystemType": "OPENZFS",
            "StorageCapacity": 64,
            "SubnetIds": subnet_ids[:subnets],
            "SecurityGroupIds": [open_group],
            "OpenZFSConfiguration": {"DeploymentType": "SINGLE_AZ_1", "ThroughputCapacity": 64, **openzfs},
        }

    return make


def test_openzfs_has_a_root_volume(fsx, openzfs_of):
    """DescribeVolumes answers the root volume as requested, and an update changes it."""
    root = {
        "DataCompressionType": "ZSTD",
        "NfsExports": [{"ClientConfigurations": [{"Clients": "*", "Options": ["rw"]}]}],
    }
    made = fsx.create_file_system(**openzfs_of(RootVolumeConfiguration=root))["FileSystem"]
    volume_id = made["OpenZFSConfiguration"]["RootVolumeId"]
    (volume,) = fsx.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert root.items() <= volume["OpenZFSConfiguration"].items()
    fsx.update_volume(VolumeId=volume_id, OpenZFSConfiguration={"DataCompressionType": "LZ4"})
    (volume,) = fsx.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert volume["OpenZFSConfiguration"]["DataCompressionType"] == "LZ4"


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("ThroughputCapacity 160 for SINGLE_AZ_1", {"ThroughputCapacity": 160}),
        ("exactly one subnet, not 2", {"subnets": 2}),
        ("two subnets", {"DeploymentType": "MULTI_AZ_1", "ThroughputCapacity": 160}),
        ("PreferredSubnetId None", {"DeploymentType": "MULTI_AZ_1", "ThroughputCapacity": 160, "subnets": 2}),
        ("DataCompressionType GZIP", {"RootVolumeConfiguration": {"DataCompressionType": "GZIP"}}),
    ],
)
def test_refuses_what_aws_refuses_of_openzfs(fsx, openzfs_of, message, changes):
    """The error names what was given and what is allowed."""
    with pytest.raises(fsx.exceptions.BadRequest, match=message):
        fsx.create_file_system(**openzfs_of(**changes))


def test_a_last_backup_is_made_as_aws_does(fsx, request_of, openzfs_of):
    """Of OpenZFS unless it is declined, of Lustre only if it is asked for; it stays until it is deleted."""
    for request, members, backups in (
        (openzfs_of(), {}, 1),
        (openzfs_of(), {"OpenZFSConfiguration": {"SkipFinalBackup": True}}, 0),
        (request_of(), {}, 0),
        (request_of(), {"LustreConfiguration": {"SkipFinalBackup": False}}, 1),
    ):
        made = fsx.create_file_system(**request)["FileSystem"]
        fsx.delete_file_system(FileSystemId=made["FileSystemId"], **members)
        found = fsx.describe_backups()["Backups"]
        assert [backup["FileSystem"]["FileSystemId"] for backup in found] == [made["FileSystemId"]] * backups
        for backup in found:
            fsx.delete_backup(BackupId=backup["BackupId"])
    assert fsx.describe_backups()["Backups"] == []


def test_data_repositories_link_folders_with_buckets(aws, fsx, request_of):
    """A link needs a bucket that is there and a folder of its own; it goes with its file system or before it."""
    aws.client("s3").create_bucket(Bucket="corpus", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    made = fsx.create_file_system(**request_of())["FileSystem"]["FileSystemId"]

    def link(path, uri="s3://corpus/v1"):
        return fsx.create_data_repository_association(FileSystemId=made, FileSystemPath=path, DataRepositoryPath=uri)

    first = link("/data")["Association"]
    for path, uri in (("/data/more", "s3://corpus"), ("/other", "s3://absent"), ("other", "s3://corpus")):
        with pytest.raises(fsx.exceptions.BadRequest):
            link(path, uri)
    fsx.tag_resource(ResourceARN=first["ResourceARN"], Tags=[{"Key": "a", "Value": "1"}])
    (found,) = fsx.describe_data_repository_associations(AssociationIds=[first["AssociationId"]])["Associations"]
    assert (found["FileSystemPath"], found["Tags"]) == ("/data", [{"Key": "a", "Value": "1"}])
    with pytest.raises(fsx.exceptions.BadRequest, match="linked to S3"):
        fsx.delete_file_system(FileSystemId=made, LustreConfiguration={"SkipFinalBackup": False})
    fsx.delete_file_system(FileSystemId=made)
    assert fsx.describe_data_repository_associations()["Associations"] == []


@pytest.fixture(scope="module")
def with_files(tmp_path_factory):
    """An account in two regions whose file systems have files."""
    folder = tmp_path_factory.mktemp("aws-files")
    storage = folder / "storage"
    with AwsStandIn(
        directory=folder / "aws", other_regions=["us-east-1"], storage=storage, transition_s=TRANSITION_S
    ) as stand_in:
        yield stand_in, storage


def network_of(aws, region):
    """Return a subnet and a security group through which Lustre passes."""
    ec2 = aws.client("ec2", region=region)
    subnet = ec2.describe_subnets()["Subnets"][0]
    group = ec2.create_security_group(GroupName="lustre", Description="-", VpcId=subnet["VpcId"])["GroupId"]
    permission = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[permission])
    return {"SubnetIds": [subnet["SubnetId"]], "SecurityGroupIds": [group]}


def available(fsx, backup_id):
    deadline = time.monotonic() + 600
    while fsx.describe_backups(BackupIds=[backup_id])["Backups"][0]["Lifecycle"] != "AVAILABLE":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_files_go_to_another_region_by_backup_copy_and_restore(with_files):
    """A restored file system has the files of the moment of the backup, and AWS's checks of order and match hold."""
    aws, storage = with_files
    here, there = (aws.client("fsx", region=region) for region in ("us-west-2", "us-east-1"))
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250, "CopyTagsToBackups": True}
    made = here.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        LustreConfiguration=lustre,
        Tags=[{"Key": "team", "Value": "red"}],
        **network_of(aws, "us-west-2"),
    )["FileSystem"]["FileSystemId"]
    with pytest.raises(ClientError, match="CREATING"):
        here.create_backup(FileSystemId=made)
    wait_for(here, made, "AVAILABLE")
    (storage / made / "deep").mkdir()
    (storage / made / "deep" / "file").write_text("before")
    (storage / made / "deep" / "file").chmod(0o640)
    request = {"FileSystemId": made, "ClientRequestToken": "one"}
    backup = here.create_backup(**request)["Backup"]
    assert here.create_backup(**request)["Backup"]["BackupId"] == backup["BackupId"]
    assert (backup["Lifecycle"], backup["Tags"]) == ("CREATING", [{"Key": "team", "Value": "red"}])
    with pytest.raises(here.exceptions.BackupInProgress):
        here.create_backup(FileSystemId=made)
    (storage / made / "deep" / "file").write_text("after")
    source = {"SourceBackupId": backup["BackupId"], "SourceRegion": "us-west-2"}
    with pytest.raises(there.exceptions.SourceBackupUnavailable):
        there.copy_backup(**source)
    available(here, backup["BackupId"])
    copy = there.copy_backup(**source, CopyTags=True)["Backup"]
    assert (copy["Lifecycle"], copy["SourceBackupRegion"]) == ("COPYING", "us-west-2")
    available(there, copy["BackupId"])
    with pytest.raises(there.exceptions.BackupNotFound):
        there.describe_backups(BackupIds=[backup["BackupId"]])
    restore = {"BackupId": copy["BackupId"], **network_of(aws, "us-east-1"), "LustreConfiguration": lustre}
    with pytest.raises(there.exceptions.BadRequest, match="2400 does not match"):
        there.create_file_system_from_backup(**restore, StorageCapacity=2400)
    other = {**lustre, "PerUnitStorageThroughput": 500}
    with pytest.raises(there.exceptions.IncompatibleParameterError, match="PerUnitStorageThroughput 500"):
        there.create_file_system_from_backup(**{**restore, "LustreConfiguration": other})
    restored = there.create_file_system_from_backup(**restore)["FileSystem"]
    assert restored["LustreConfiguration"]["MountName"] != backup["FileSystem"]["LustreConfiguration"]["MountName"]
    file = storage / restored["FileSystemId"] / "deep" / "file"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("before", 0o640)
    there.delete_backup(BackupId=copy["BackupId"])
    assert not (storage / copy["BackupId"]).exists()


def test_a_scratch_file_system_has_no_backups(fsx, request_of):
    """CreateBackup of what FSx does not back up is a BadRequest."""
    scratch = request_of()
    scratch["LustreConfiguration"] = {"DeploymentType": "SCRATCH_2"}
    made = fsx.create_file_system(**scratch)["FileSystem"]["FileSystemId"]
    with pytest.raises(fsx.exceptions.BadRequest, match="SCRATCH_2"):
        fsx.create_backup(FileSystemId=made)
    fsx.delete_file_system(FileSystemId=made)
