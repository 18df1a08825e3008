"""FSx for Lustre in the stand-in: its life, and what it refuses."""

import time

import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given
from hypothesis import strategies as st

from podwright.rehearsal.aws import AwsStandIn, lustre_limits
from podwright.rehearsal.aws.errors import AwsError
from podwright_constructs import checks

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
    deadline = time.monotonic() + 30
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
        ("BadRequest", "plays LUSTRE only", {"FileSystemType": "WINDOWS"}),
        ("BadRequest", "exactly one subnet", {"SubnetIds": []}),
        ("InvalidNetworkSettings", "subnet-0", {"SubnetIds": ["subnet-00000000000000000"]}),
        ("InvalidNetworkSettings", "sg-0", {"SecurityGroupIds": ["sg-00000000000000000"]}),
    ],
)
def test_refuses_what_aws_refuses(fsx, request_of, error, message, changes):
    """The error has AWS's shape and names what was given."""
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


def passes(request):
    try:
        lustre_limits.check(request)
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
    assert {
        capacity
        for capacity in range(0, 12001, 100)
        if passes({"StorageCapacity": capacity, "StorageType": storage, "LustreConfiguration": lustre})
    } == allowed


@given(capacity_gib=CAPACITIES_GIB, throughput=THROUGHPUTS)
@example(capacity_gib=1200, throughput=125)
def test_the_constructs_and_the_stand_in_agree(capacity_gib, throughput):
    """Two independent readings of AWS's pages accept and refuse the same file systems."""
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": throughput}
    problems = checks.lustre_file_system(
        capacity_gib=capacity_gib, throughput_mbps_per_tib=throughput, mount_path="/fsx"
    )
    assert passes({"StorageCapacity": capacity_gib, "LustreConfiguration": lustre}) is not bool(problems)
