"""HyperPod clusters in the stand-in, through Cloud Control and SageMaker's own API."""

import copy
import ipaddress
import json
import re
import time

import pytest
from botocore.exceptions import ClientError

from podwright.aws_session import Session
from podwright.operations.account.hyperpod import described
from podwright.operations.nodes.group_request import group_request
from podwright_rehearsal.aws import AwsStandIn, AwsStandInError

pytestmark = pytest.mark.slow

TYPE = "AWS::SageMaker::Cluster"
BUCKET = "sagemaker-scripts"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}},
    ],
}
LUSTRE = {"FsxLustreConfig": {"DnsName": "fs-01234567.fsx.us-west-2.amazonaws.com", "MountName": "abcdefgh"}}
IN_BATCHES = {
    "ScheduleExpression": "cron(0 3 ? * SUN *)",
    "DeploymentConfig": {
        "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}},
        "WaitIntervalInSeconds": 0,
    },
}
PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller",
    "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
}


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.2) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def control(aws):
    return aws.client("cloudcontrol")


@pytest.fixture(scope="module")
def sagemaker(aws):
    return aws.client("sagemaker")


@pytest.fixture(scope="module")
def subnet(aws):
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    return ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.16.0/24")["Subnet"]


@pytest.fixture(scope="module")
def group(aws, subnet):
    """A security group that lets all traffic pass between its members."""
    ec2 = aws.client("ec2")
    group_id = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=subnet["VpcId"])["GroupId"]
    everything = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
    ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=everything)
    ec2.authorize_security_group_egress(GroupId=group_id, IpPermissions=everything)
    return group_id


@pytest.fixture(scope="module")
def role(aws):
    return aws.client("iam").create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"]


@pytest.fixture(scope="module")
def put_scripts(aws):
    """Writes a prefix of lifecycle scripts and gives its address."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws.region})

    def put(prefix, parameters=PARAMETERS, *, text=None):
        body = json.dumps(parameters) if text is None else text
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/provisioning_parameters.json", Body=body.encode())
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/on_create.sh", Body=b"#!/bin/sh\n")
        return f"s3://{BUCKET}/{prefix}"

    return put


@pytest.fixture
def model(subnet, group, role, put_scripts, request):
    """A cluster that HyperPod takes: one controller, two workers. Its name is the test's."""

    def instance_group(name, instance_type, count):
        return {
            "InstanceGroupName": name,
            "InstanceType": instance_type,
            "InstanceCount": count,
            "ExecutionRole": role,
            "LifeCycleConfig": {"SourceS3Uri": put_scripts("base"), "OnCreate": "on_create.sh"},
        }

    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:63].strip("-")
    return {
        "ClusterName": name,
        "VpcConfig": {"SecurityGroupIds": [group], "Subnets": [subnet["SubnetId"]]},
        "NodeRecovery": "Automatic",
        "InstanceGroups": [
            instance_group("controller", "ml.m5.xlarge", 1),
            instance_group("workers", "ml.g5.12xlarge", 2),
        ],
        "Tags": [{"Key": "project", "Value": "Größe 1"}],
    }


@pytest.fixture
def outcome(control):
    """Waits for the end of an asynchronous request."""

    def wait(answer):
        token = answer["ProgressEvent"]["RequestToken"]
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            event = control.get_resource_request_status(RequestToken=token)["ProgressEvent"]
            if event["OperationStatus"] != "IN_PROGRESS":
                return event
            time.sleep(0.05)
        pytest.fail(f"{token} did not end")

    return wait


@pytest.fixture
def create(control, outcome):
    """Creates a cluster and gives the final progress event; what came to life is deleted after the test."""
    made = []

    def make(desired):
        event = outcome(control.create_resource(TypeName=TYPE, DesiredState=json.dumps(desired)))
        if event["OperationStatus"] == "SUCCESS":
            made.append(event["Identifier"])
        return event

    yield make
    for arn in made:
        outcome(control.delete_resource(TypeName=TYPE, Identifier=arn))


@pytest.fixture
def update(control, outcome):
    """Applies a JSON patch and gives the final progress event."""

    def patch(arn, *operations):
        return outcome(
            control.update_resource(TypeName=TYPE, Identifier=arn, PatchDocument=json.dumps(list(operations)))
        )

    return patch


def properties(control, arn):
    return json.loads(control.get_resource(TypeName=TYPE, Identifier=arn)["ResourceDescription"]["Properties"])


def nodes(sagemaker, name, **filters):
    return sagemaker.list_cluster_nodes(ClusterName=name, **filters)["ClusterNodeSummaries"]


def node(sagemaker, name, instance_id):
    return sagemaker.describe_cluster_node(ClusterName=name, NodeId=instance_id)["NodeDetails"]


def test_create_goes_from_in_progress_to_success(aws, control, outcome, sagemaker, model):
    """The request and the cluster itself report their progress, as in AWS."""
    with aws.stopped_clock():
        answer = control.create_resource(TypeName=TYPE, DesiredState=json.dumps(model))
        assert answer["ProgressEvent"]["OperationStatus"] == "IN_PROGRESS"
        assert sagemaker.describe_cluster(ClusterName=model["ClusterName"])["ClusterStatus"] == "Creating"
    event = outcome(answer)
    assert (event["OperationStatus"], event["Operation"]) == ("SUCCESS", "CREATE")
    found = properties(control, event["Identifier"])
    assert found["ClusterArn"] == event["Identifier"]
    assert found["ClusterStatus"] == "InService"
    assert [group.pop("CurrentCount") for group in found["InstanceGroups"]] == [1, 2]
    assert {key: found[key] for key in model} == model
    outcome(control.delete_resource(TypeName=TYPE, Identifier=event["Identifier"]))


def test_delete_ends_in_not_found(aws, control, outcome, create, model):
    """A deleted cluster is Deleting, then not found; deleting it once more fails as NotFound."""
    arn = create(model)["Identifier"]
    with aws.stopped_clock():
        answer = control.delete_resource(TypeName=TYPE, Identifier=arn)
        assert properties(control, arn)["ClusterStatus"] == "Deleting"
    assert outcome(answer)["OperationStatus"] == "SUCCESS"
    with pytest.raises(control.exceptions.ResourceNotFoundException, match=arn):
        control.get_resource(TypeName=TYPE, Identifier=arn)
    again = outcome(control.delete_resource(TypeName=TYPE, Identifier=arn))
    assert (again["OperationStatus"], again["ErrorCode"]) == ("FAILED", "NotFound")


def test_list_resources_names_each_cluster(control, create, model):
    """ListResources gives the identifiers of all that live."""
    arn = create(model)["Identifier"]
    listed = control.list_resources(TypeName=TYPE)["ResourceDescriptions"]
    assert [description["Identifier"] for description in listed] == [arn]


def test_client_token_makes_a_request_once(control, outcome, model):
    """The same token and request give the same progress; the same token and another request a conflict."""
    asked = {"TypeName": TYPE, "DesiredState": json.dumps(model), "ClientToken": "token-1"}
    first, second = control.create_resource(**asked), control.create_resource(**asked)
    assert first["ProgressEvent"]["RequestToken"] == second["ProgressEvent"]["RequestToken"]
    other = json.dumps({**model, "ClusterName": "other"})
    with pytest.raises(control.exceptions.ClientTokenConflictException):
        control.create_resource(**{**asked, "DesiredState": other})
    arn = outcome(first)["Identifier"]
    outcome(control.delete_resource(TypeName=TYPE, Identifier=arn))


def test_unknown_token_and_other_types_are_refused(control):
    """Cloud Control's own errors for what it does not know."""
    with pytest.raises(control.exceptions.RequestTokenNotFoundException):
        control.get_resource_request_status(RequestToken="none")
    with pytest.raises(control.exceptions.UnsupportedActionException, match="AWS::S3::Bucket"):
        control.create_resource(TypeName="AWS::S3::Bucket", DesiredState="{}")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("#/ClusterName", {"ClusterName": "-starts-with-a-hyphen"}),
        ("#/NodeRecovery", {"NodeRecovery": "Sometimes"}),
        ("Cluster_Name", {"Cluster_Name": "misspelt"}),
        ("#/VpcConfig/Subnets", {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": []}}),
        ("#/Tags/0/Key", {"Tags": [{"Key": "no*star", "Value": ""}]}),
        ("readOnlyProperties", {"ClusterStatus": "InService"}),
    ],
)
def test_models_that_break_the_schema_are_refused_at_once(control, model, message, changes):
    """AWS's own schema decides, synchronously, and the message has the path."""
    with pytest.raises(ClientError, match=message) as refused:
        control.create_resource(TypeName=TYPE, DesiredState=json.dumps({**model, **changes}))
    assert refused.value.response["Error"]["Code"] == "ValidationException"


def test_desired_state_that_is_not_json_is_refused(control):
    """A broken document is the caller's mistake, not a crash."""
    with pytest.raises(ClientError, match="not JSON") as refused:
        control.create_resource(TypeName=TYPE, DesiredState="{")
    assert refused.value.response["Error"]["Code"] == "ValidationException"


def failure(event):
    assert event["OperationStatus"] == "FAILED"
    assert "Identifier" not in event
    return event["ErrorCode"], event["StatusMessage"]


def test_a_taken_name_is_refused(create, model):
    """A second cluster of one name is refused."""
    create(model)
    code, message = failure(create(model))
    assert code == "AlreadyExists"
    assert model["ClusterName"] in message


@pytest.mark.parametrize(
    ("message", "break_it"),
    [
        ("ml.g5.13xlarge of workers", lambda model: model["InstanceGroups"][1].update(InstanceType="ml.g5.13xlarge")),
        ("controller is used by 2", lambda model: model["InstanceGroups"][1].update(InstanceGroupName="controller")),
        ("InstanceGroups is missing", lambda model: model.pop("InstanceGroups")),
        ("VpcConfig is missing", lambda model: model.pop("VpcConfig")),
        ("subnet-0 does not exist", lambda model: model["VpcConfig"].update(Subnets=["subnet-0"])),
        ("sg-0 does not exist", lambda model: model["VpcConfig"].update(SecurityGroupIds=["sg-0"])),
        ("must have InstanceCount 1, not 0", lambda model: model["InstanceGroups"][0].update(InstanceCount=0)),
        ("must have InstanceCount 1, not 2", lambda model: model["InstanceGroups"][0].update(InstanceCount=2)),
        ("controller_group controller of", lambda model: model["InstanceGroups"].pop(0)),
        (
            "worker_groups of .* names workers",
            lambda model: model["InstanceGroups"][1].update(InstanceGroupName="labourers"),
        ),
        (
            "role/absent does not exist",
            lambda model: model["InstanceGroups"][1].update(ExecutionRole="arn:aws:iam::123456789012:role/absent"),
        ),
        (
            "must begin with s3://sagemaker-",
            lambda model: model["InstanceGroups"][1]["LifeCycleConfig"].update(SourceS3Uri="s3://scripts/base"),
        ),
        (
            "Lifecycle scripts did not run successfully on workers: there is no s3://sagemaker-scripts/base/absent.sh",
            lambda model: model["InstanceGroups"][1]["LifeCycleConfig"].update(OnCreate="absent.sh"),
        ),
        (
            "s3://sagemaker-absent/base/provisioning_parameters.json does not exist",
            lambda model: model["InstanceGroups"][1]["LifeCycleConfig"].update(
                SourceS3Uri="s3://sagemaker-absent/base"
            ),
        ),
        (
            "LifeCycleConfig of workers needs SourceS3Uri",
            lambda model: model["InstanceGroups"][1].pop("LifeCycleConfig"),
        ),
        (
            "Spot of workers needs NodeProvisioningMode Continuous",
            lambda model: model["InstanceGroups"][1].update(CapacityRequirements={"Spot": {}}),
        ),
        (
            "MinInstanceCount of workers needs NodeProvisioningMode Continuous",
            lambda model: model["InstanceGroups"][1].update(MinInstanceCount=1),
        ),
        (
            "DeploymentConfig of workers: updates in batches are available only for clusters orchestrated by EKS",
            lambda model: model["InstanceGroups"][1].update(ScheduledUpdateConfig=IN_BATCHES),
        ),
        (
            "TieredStorageConfig is supported for clusters with Orchestrator Eks only",
            lambda model: model.update(TieredStorageConfig={"Mode": "Enable"}),
        ),
        ("no free address left for workers", lambda model: model["InstanceGroups"][1].update(InstanceCount=251)),
    ],
)
def test_clusters_that_hyperpod_would_fail_are_refused(create, model, message, break_it):
    """The handler fails with InvalidRequest and says what is wrong; nothing is left behind."""
    wrong = copy.deepcopy(model)
    break_it(wrong)
    code, said = failure(create(wrong))
    assert code == "InvalidRequest"
    assert re.search(message, said), said


@pytest.fixture
def by_api(model):
    """The same cluster with Slurm set up by HyperPod itself."""
    for group, node_type in zip(model["InstanceGroups"], ("Controller", "Compute"), strict=True):
        group.pop("LifeCycleConfig")
        group["SlurmConfig"] = {"NodeType": node_type}
    model["InstanceGroups"][1]["SlurmConfig"]["PartitionNames"] = ["gpu"]
    return {**model, "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}}}


def test_slurm_by_the_api_needs_no_scripts(create, update, by_api, sagemaker):
    """Such a cluster comes up; its controller is known, and a group keeps its part in Slurm."""
    arn = create(by_api)["Identifier"]
    (controller,) = nodes(sagemaker, by_api["ClusterName"], InstanceGroupNameContains="controller")
    answer = sagemaker.batch_replace_cluster_nodes(ClusterName=arn, NodeIds=[controller["InstanceId"]])
    assert answer["Failed"][0]["ErrorCode"] == "InvalidInstanceStatus"
    login = {"op": "replace", "path": "/InstanceGroups/1/SlurmConfig", "value": {"NodeType": "Login"}}
    assert "NodeType of workers cannot change from Compute to Login" in update(arn, login)["StatusMessage"]


@pytest.mark.parametrize(
    ("message", "break_it"),
    [
        ("exactly 1 .* NodeType Controller, not 2", lambda model: slurm_of(model, 1).update(NodeType="Controller")),
        ("controller must have InstanceCount 1", lambda model: model["InstanceGroups"][0].update(InstanceCount=2)),
        ("PartitionNames of workers is missing", lambda model: slurm_of(model, 1).pop("PartitionNames")),
        ("PartitionNames of controller is for", lambda model: slurm_of(model, 0).update(PartitionNames=["a"])),
        ("SlurmConfig of workers is missing", lambda model: model["InstanceGroups"][1].pop("SlurmConfig")),
        ("Orchestrator.Slurm is missing", lambda model: model.pop("Orchestrator")),
        ("SlurmConfigStrategy is not supported", lambda model: model.update(NodeProvisioningMode="Continuous")),
        (
            "AccountingDatabase is supported with NodeProvisioningMode Continuous only",
            lambda model: model["Orchestrator"]["Slurm"].update(
                AccountingDatabase={"Endpoint": "db.local", "SecretArn": "arn:aws:secretsmanager:::secret:a"}
            ),
        ),
        (
            "cannot include both a SLURM Orchestrator Config and a provisioning_parameters.json",
            lambda model: model["InstanceGroups"][1].update(
                LifeCycleConfig={"SourceS3Uri": f"s3://{BUCKET}/base", "OnInitComplete": "on_create.sh"}
            ),
        ),
        (
            "workers has 2 FsxLustreConfig",
            lambda model: model["InstanceGroups"][1].update(InstanceStorageConfigs=[LUSTRE, LUSTRE]),
        ),
    ],
)
def test_slurm_by_the_api_has_its_own_rules(create, by_api, message, break_it):
    """Wrong settings of Slurm by the API are refused with the reason."""
    wrong = copy.deepcopy(by_api)
    break_it(wrong)
    code, said = failure(create(wrong))
    assert code == "InvalidRequest"
    assert re.search(message, said)


def slurm_of(model, index):
    return model["InstanceGroups"][index]["SlurmConfig"]


def test_several_controllers_share_a_database_and_a_directory(create, model, put_scripts):
    """With AWS's three parameters there may be two controllers; without one of them, it is named."""
    shared = {"slurm_database_secret_arn": "a", "slurm_database_endpoint": "b"}
    source = put_scripts("heads", {**PARAMETERS, "slurm_configurations": shared})
    for group in model["InstanceGroups"]:
        group["LifeCycleConfig"]["SourceS3Uri"] = source
    model["InstanceGroups"][0]["InstanceCount"] = 2
    assert "lacks slurm_shared_directory" in failure(create(model))[1]
    put_scripts("heads", {**PARAMETERS, "slurm_configurations": {**shared, "slurm_shared_directory": "/fsx/slurm"}})
    assert create(model)["OperationStatus"] == "SUCCESS"


def test_every_problem_is_named_at_once(create, model):
    """One attempt reports all problems."""
    model["InstanceGroups"][0]["InstanceCount"] = 3
    model["InstanceGroups"][1]["InstanceType"] = "ml.abacus"
    _, message = failure(create(model))
    assert "InstanceCount 1, not 3" in message
    assert "ml.abacus" in message


@pytest.mark.parametrize(
    ("message", "parameters"),
    [
        ("controller_group None", {"worker_groups": PARAMETERS["worker_groups"]}),
        ("worker_groups of s3://.* is empty", {"controller_group": "controller"}),
        ("login_group of .* names gate", {**PARAMETERS, "login_group": "gate"}),
        ("is not an object", []),
    ],
)
def test_provisioning_parameters_must_fit_the_groups(create, model, put_scripts, message, parameters):
    """The file beside the scripts is read as HyperPod's agent reads it."""
    for group in model["InstanceGroups"]:
        group["LifeCycleConfig"]["SourceS3Uri"] = put_scripts("broken", parameters)
    code, said = failure(create(model))
    assert code == "InvalidRequest"
    assert re.search(message, said), said


def test_provisioning_parameters_must_be_json(create, model, put_scripts):
    """A file cut short is named as such."""
    for group in model["InstanceGroups"]:
        group["LifeCycleConfig"]["SourceS3Uri"] = put_scripts("cut", text='{"version": ')
    assert "provisioning_parameters.json is not JSON" in failure(create(model))[1]


def test_a_role_that_sagemaker_cannot_assume_is_refused(aws, create, model):
    """A role for EC2 is no role for HyperPod."""
    trust = json.dumps(TRUST).replace("sagemaker.", "ec2.")
    arn = aws.client("iam").create_role(RoleName="ec2-only", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    model["InstanceGroups"][1]["ExecutionRole"] = arn
    assert f"{arn} cannot be assumed" in failure(create(model))[1]


@pytest.mark.parametrize(("closed", "named"), [("ingress", "inbound"), ("egress", "outbound")])
def test_efa_needs_all_traffic_within_the_group_both_ways(aws, create, model, subnet, closed, named):
    """One direction is not enough for a type with EFA, and no matter for one without."""
    ec2 = aws.client("ec2")
    group_id = ec2.create_security_group(GroupName=closed, Description="-", VpcId=subnet["VpcId"])["GroupId"]
    everything = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
    if closed == "egress":
        ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=everything)
    else:
        ec2.authorize_security_group_egress(GroupId=group_id, IpPermissions=everything)
    model["VpcConfig"]["SecurityGroupIds"] = [group_id]
    message = failure(create(model))[1]
    assert message.startswith("EFA health checks did not run successfully on workers")
    assert f"whose {named} rules" in message
    model["InstanceGroups"][1]["InstanceType"] = "ml.g5.xlarge"
    assert create(model)["OperationStatus"] == "SUCCESS"


def test_nodes_get_addresses_of_the_subnet(aws, create, sagemaker, model, subnet, group):
    """Each node has its own address, none of AWS's five reserved ones and none that something else has."""
    taken = aws.client("ec2").create_network_interface(
        SubnetId=subnet["SubnetId"], Groups=[group], PrivateIpAddress="10.0.16.5"
    )["NetworkInterface"]
    model["InstanceGroups"][1]["InstanceCount"] = 5
    create(model)
    name = model["ClusterName"]
    found = [node(sagemaker, name, summary["InstanceId"]) for summary in nodes(sagemaker, name)]
    addresses = [ipaddress.ip_address(details["PrivatePrimaryIp"]) for details in found]
    network = ipaddress.ip_network(subnet["CidrBlock"])
    reserved = {*list(network)[:4], network.broadcast_address}
    assert len(set(addresses)) == 6
    assert set(addresses) <= set(network) - reserved - {ipaddress.ip_address("10.0.16.5")}
    for details in found:
        host = "ip-" + details["PrivatePrimaryIp"].replace(".", "-")
        assert details["PrivateDnsHostname"] == f"{host}.us-west-2.compute.internal"
        assert details["InstanceStatus"]["Status"] == "Running"
        assert re.fullmatch("i-[0-9a-f]{17}", details["InstanceId"])
        assert details["LifeCycleConfig"]["OnCreate"] == "on_create.sh"
        assert details["Placement"]["AvailabilityZone"] == subnet["AvailabilityZone"]
    aws.client("ec2").delete_network_interface(NetworkInterfaceId=taken["NetworkInterfaceId"])


def test_nodes_are_listed_in_pages_and_by_group(create, sagemaker, model):
    """Paginators work, and a part of the group's name filters."""
    model["InstanceGroups"][1]["InstanceCount"] = 4
    create(model)
    name = model["ClusterName"]
    pages = list(
        sagemaker.get_paginator("list_cluster_nodes").paginate(ClusterName=name, PaginationConfig={"PageSize": 2})
    )
    ids = [summary["InstanceId"] for page in pages for summary in page["ClusterNodeSummaries"]]
    assert [len(page["ClusterNodeSummaries"]) for page in pages] == [2, 2, 1]
    assert ids == [summary["InstanceId"] for summary in nodes(sagemaker, name)]
    assert len(nodes(sagemaker, name, InstanceGroupNameContains="work")) == 4


def test_clusters_are_described_and_listed(create, sagemaker, model):
    """SageMaker's own API shows what Cloud Control made."""
    arn = create(model)["Identifier"]
    found = sagemaker.describe_cluster(ClusterName=model["ClusterName"])
    assert found["ClusterArn"] == arn
    assert found["ClusterStatus"] == "InService"
    assert found["VpcConfig"] == model["VpcConfig"]
    assert [(item["InstanceGroupName"], item["CurrentCount"]) for item in found["InstanceGroups"]] == [
        ("controller", 1),
        ("workers", 2),
    ]
    assert sagemaker.describe_cluster(ClusterName=arn)["ClusterName"] == model["ClusterName"]
    assert [item["ClusterArn"] for item in sagemaker.list_clusters()["ClusterSummaries"]] == [arn]
    assert sagemaker.list_clusters(NameContains="no-such")["ClusterSummaries"] == []


def test_sagemaker_errors_have_their_shapes(create, sagemaker, model):
    """Unknown clusters and nodes are ResourceNotFound; operations that are not emulated say so."""
    create(model)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="absent"):
        sagemaker.describe_cluster(ClusterName="absent")
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="i-0"):
        sagemaker.describe_cluster_node(ClusterName=model["ClusterName"], NodeId="i-00000000000000000")
    with pytest.raises(ClientError, match="does not implement ListClusterSchedulerConfigs"):
        sagemaker.list_cluster_scheduler_configs()


def test_growing_keeps_nodes_and_shrinking_drops_the_youngest(create, update, sagemaker, model):
    """An update of InstanceCount does not touch the nodes that stay."""
    arn, name = create(model)["Identifier"], model["ClusterName"]
    two = [summary["InstanceId"] for summary in nodes(sagemaker, name)]
    event = update(arn, {"op": "replace", "path": "/InstanceGroups/1/InstanceCount", "value": 4})
    assert event["OperationStatus"] == "SUCCESS"
    four = [summary["InstanceId"] for summary in nodes(sagemaker, name)]
    assert four[:3] == two
    assert len(four) == 5
    update(arn, {"op": "replace", "path": "/InstanceGroups/1/InstanceCount", "value": 1})
    assert [summary["InstanceId"] for summary in nodes(sagemaker, name)] == two[:2]


def test_groups_are_added_and_removed(create, update, sagemaker, model):
    """A patch may append a group and take it away again."""
    arn, name = create(model)["Identifier"], model["ClusterName"]
    extra = {**model["InstanceGroups"][1], "InstanceGroupName": "login", "InstanceCount": 1}
    update(arn, {"op": "add", "path": "/InstanceGroups/-", "value": extra})
    assert [item["InstanceGroupName"] for item in nodes(sagemaker, name)] == [
        "controller",
        "workers",
        "workers",
        "login",
    ]
    update(arn, {"op": "remove", "path": "/InstanceGroups/2"})
    assert [item["InstanceGroupName"] for item in nodes(sagemaker, name)] == ["controller", "workers", "workers"]


@pytest.mark.parametrize(
    ("error", "message", "patch"),
    [
        ("NotUpdatableException", "/properties/ClusterName", {"op": "replace", "path": "/ClusterName", "value": "new"}),
        (
            "NotUpdatableException",
            "/properties/VpcConfig",
            {"op": "replace", "path": "/VpcConfig/Subnets", "value": ["subnet-1"]},
        ),
        ("ValidationException", "readOnly", {"op": "add", "path": "/ClusterStatus", "value": "Failed"}),
        ("ValidationException", "#/NodeRecovery", {"op": "replace", "path": "/NodeRecovery", "value": "Never"}),
        ("ValidationException", "Invalid patch document", {"op": "remove", "path": "/InstanceGroups/7"}),
    ],
)
def test_updates_that_cannot_be_are_refused_at_once(control, create, model, error, message, patch):
    """Properties set for life, read-only ones, and patches that do not fit."""
    arn = create(model)["Identifier"]
    before = properties(control, arn)
    with pytest.raises(ClientError, match=message) as refused:
        control.update_resource(TypeName=TYPE, Identifier=arn, PatchDocument=json.dumps([patch]))
    assert refused.value.response["Error"]["Code"] == error
    assert properties(control, arn) == before


def test_a_failed_update_changes_nothing(control, create, update, sagemaker, model):
    """The handler refuses a second controller and another type for a group; the cluster stays as it was."""
    arn, name = create(model)["Identifier"], model["ClusterName"]
    before = properties(control, arn), nodes(sagemaker, name)
    second = update(arn, {"op": "replace", "path": "/InstanceGroups/0/InstanceCount", "value": 2})
    assert (second["OperationStatus"], second["ErrorCode"]) == ("FAILED", "InvalidRequest")
    other = update(arn, {"op": "replace", "path": "/InstanceGroups/1/InstanceType", "value": "ml.p5.48xlarge"})
    assert "InstanceType of workers cannot change" in other["StatusMessage"]
    assert (properties(control, arn), nodes(sagemaker, name)) == before


def test_two_changes_at_a_time_are_refused(aws, control, outcome, create, model):
    """While one change is under way another is a conflict."""
    arn = create(model)["Identifier"]
    patch = json.dumps([{"op": "replace", "path": "/InstanceGroups/1/InstanceCount", "value": 3}])
    with aws.stopped_clock():
        first = control.update_resource(TypeName=TYPE, Identifier=arn, PatchDocument=patch)
        with pytest.raises(control.exceptions.ConcurrentOperationException, match="Updating"):
            control.delete_resource(TypeName=TYPE, Identifier=arn)
    assert outcome(first)["OperationStatus"] == "SUCCESS"


def test_replacing_a_node_gives_a_new_instance_at_the_old_address(aws, create, sagemaker, model):
    """New instance id, same address and host name; the other nodes stay."""
    create(model)
    name = model["ClusterName"]
    controller, first, second = (summary["InstanceId"] for summary in nodes(sagemaker, name))
    before = node(sagemaker, name, first)
    with aws.stopped_clock():
        answer = sagemaker.batch_replace_cluster_nodes(
            ClusterName=name, NodeIds=[first, controller, "i-00000000000000000"]
        )
        assert answer["Successful"] == [first]
        assert {(item["NodeId"], item["ErrorCode"]) for item in answer["Failed"]} == {
            (controller, "InvalidInstanceStatus"),
            ("i-00000000000000000", "InstanceIdNotFound"),
        }
        ids = [summary["InstanceId"] for summary in nodes(sagemaker, name)]
        assert (ids[0], ids[2]) == (controller, second)
        assert ids[1] != first
        after = node(sagemaker, name, ids[1])
        assert after["InstanceStatus"]["Status"] == "Pending"
    assert (after["PrivatePrimaryIp"], after["PrivateDnsHostname"]) == (
        before["PrivatePrimaryIp"],
        before["PrivateDnsHostname"],
    )


def test_rebooting_keeps_the_instance(aws, create, sagemaker, model):
    """Pending, then Running, under the same id."""
    create(model)
    name = model["ClusterName"]
    worker = nodes(sagemaker, name)[1]["InstanceId"]
    with aws.stopped_clock():
        assert sagemaker.batch_reboot_cluster_nodes(ClusterName=name, NodeIds=[worker])["Successful"] == [worker]
        assert node(sagemaker, name, worker)["InstanceStatus"]["Status"] == "Pending"
    deadline = time.monotonic() + 600
    while node(sagemaker, name, worker)["InstanceStatus"]["Status"] != "Running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert node(sagemaker, name, worker)["InstanceStatus"]["Status"] == "Running"


def test_a_group_of_several_types_is_scaled_as_it_is(aws, create, sagemaker, model):
    """A group takes one type or a list; its description, turned into a request, keeps list, image and minimum."""
    model["NodeProvisioningMode"] = "Continuous"
    workers = model["InstanceGroups"][1]
    model["InstanceGroups"][1] = {**workers, "InstanceRequirements": {"InstanceTypes": ["ml.g5.12xlarge"]}}
    assert "workers needs either InstanceType or InstanceRequirements" in failure(create(model))[1]
    asked = {key: value for key, value in workers.items() if key != "InstanceType"} | {
        "InstanceRequirements": {"InstanceTypes": ["ml.g5.12xlarge", "ml.g6.12xlarge"]},
        "ImageId": "ami-0123456789abcdef0",
        "MinInstanceCount": 1,
        "AutoPatchConfig": {"PatchingStrategy": "WhenIdle"},
    }
    model["InstanceGroups"][1] = asked
    assert create(model)["OperationStatus"] == "SUCCESS"
    answer = settled(sagemaker, model["ClusterName"]).describe_cluster(ClusterName=model["ClusterName"])
    (details,) = answer["InstanceGroups"][1]["InstanceTypeDetails"]
    assert (details["InstanceType"], details["CurrentCount"]) == ("ml.g5.12xlarge", 2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in aws.environment().items():
            patch.setenv(name, value)
        session = Session(region=aws.region)
        request = group_request(session, described(session, answer).groups[1], count=3)
    assert request == {**asked, "InstanceCount": 3}
    sagemaker.update_cluster(ClusterName=model["ClusterName"], InstanceGroups=[request])
    assert [item["InstanceType"] for item in nodes(sagemaker, model["ClusterName"])][1:] == ["ml.g5.12xlarge"] * 3
    settled(sagemaker, model["ClusterName"])


def test_update_cluster_changes_the_groups_that_are_named(create, sagemaker, model):
    """UpdateCluster grows one group, adds another and leaves the rest; what HyperPod would fail it refuses."""
    create(model)
    name = model["ClusterName"]
    workers = {**model["InstanceGroups"][1], "InstanceCount": 3}
    more = {**workers, "InstanceGroupName": "more", "InstanceCount": 1}
    settled(sagemaker, name)
    with pytest.raises(ClientError, match="InstanceType of workers cannot change"):
        sagemaker.update_cluster(ClusterName=name, InstanceGroups=[{**workers, "InstanceType": "ml.g5.xlarge"}])
    sagemaker.update_cluster(ClusterName=name, InstanceGroups=[workers, more])
    with pytest.raises(sagemaker.exceptions.ConflictException):
        sagemaker.update_cluster(ClusterName=name, InstanceGroups=[workers])
    settled(sagemaker, name).update_cluster(ClusterName=name, InstanceGroupsToDelete=["more"])
    assert [item["InstanceGroupName"] for item in nodes(sagemaker, name)] == ["controller", *["workers"] * 3]
    settled(sagemaker, name)


def test_a_software_update_restarts_the_groups_that_are_named(aws, create, sagemaker, model):
    """UpdateClusterSoftware: SystemUpdating, the group's instances pending under their ids, the others running."""
    create(model)
    name = model["ClusterName"]
    settled(sagemaker, name)
    before = [item["InstanceId"] for item in nodes(sagemaker, name)]
    with aws.stopped_clock():
        sagemaker.update_cluster_software(ClusterName=name, InstanceGroups=[{"InstanceGroupName": "workers"}])
        assert sagemaker.describe_cluster(ClusterName=name)["ClusterStatus"] == "SystemUpdating"
        after = nodes(sagemaker, name)
    assert [item["InstanceId"] for item in after] == before
    assert {item["InstanceGroupName"] for item in after if item["InstanceStatus"]["Status"] == "Pending"} == {"workers"}
    with pytest.raises(ClientError, match="no instance group gpus"):
        settled(sagemaker, name).update_cluster_software(
            ClusterName=name, InstanceGroups=[{"InstanceGroupName": "gpus"}]
        )


def test_deleting_nodes_shrinks_their_group(create, sagemaker, model):
    """BatchDeleteClusterNodes takes the worker that is named, and no controller."""
    create(model)
    name = model["ClusterName"]
    settled(sagemaker, name)
    controller, *workers = [item["InstanceId"] for item in nodes(sagemaker, name)]
    answer = sagemaker.batch_delete_cluster_nodes(ClusterName=name, NodeIds=[workers[0], controller, "i-00000000"])
    assert answer["Successful"] == [workers[0]]
    assert [item["Code"] for item in answer["Failed"]] == ["InvalidNodeStatus", "NodeIdNotFound"]
    assert [item["InstanceId"] for item in nodes(sagemaker, name)] == [controller, *workers[1:]]
    groups = {
        item["InstanceGroupName"]: item for item in sagemaker.describe_cluster(ClusterName=name)["InstanceGroups"]
    }
    assert groups["workers"]["TargetCount"] == len(workers) - 1
    settled(sagemaker, name)


def test_events_tell_what_happened(create, sagemaker, model):
    """A continuous cluster lists its events, newest first, by page and filter; one is described by its id."""
    create({**model, "NodeProvisioningMode": "Continuous"})
    name = model["ClusterName"]
    worker = nodes(sagemaker, name)[1]["InstanceId"]
    sagemaker.batch_reboot_cluster_nodes(ClusterName=name, NodeIds=[worker])
    pages = sagemaker.get_paginator("list_cluster_events").paginate(ClusterName=name, PaginationConfig={"PageSize": 2})
    events = [event for page in pages for event in page["Events"]]
    assert [event["Description"] for event in events] == [
        "Instance restarts",
        *["Instance is launched"] * 3,
        "Instance group scales from 0 to 2",
        "Instance group scales from 0 to 1",
        "Cluster creation started",
    ]
    assert [event["ResourceType"] for event in events] == [*["Instance"] * 4, *["InstanceGroup"] * 2, "Cluster"]
    of_worker = sagemaker.list_cluster_events(ClusterName=name, NodeId=worker, SortOrder="Ascending")["Events"]
    assert [event["Description"] for event in of_worker] == ["Instance is launched", "Instance restarts"]
    described = sagemaker.describe_cluster_event(ClusterName=name, EventId=events[0]["EventId"])["EventDetails"]
    assert described == {**events[0], "EventDetails": {"EventMetadata": {"Instance": {}}}}
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_cluster_event(ClusterName=name, EventId="00000000-0000-0000-0000-000000000000")


def test_events_have_only_metadata_of_awss_api(aws, create, sagemaker, model):
    """A node's failure is in its event's metadata; metadata that AWS's model lacks are refused."""
    create({**model, "NodeProvisioningMode": "Continuous"})
    name = model["ClusterName"]
    worker = nodes(sagemaker, name)[1]["InstanceId"]
    aws.fail(name, node=worker, status="Failure", message="no EFA")
    newest = sagemaker.list_cluster_events(ClusterName=name, NodeId=worker)["Events"][0]
    described = sagemaker.describe_cluster_event(ClusterName=name, EventId=newest["EventId"])["EventDetails"]
    assert described["EventDetails"] == {"EventMetadata": {"Instance": {"FailureMessage": "no EFA"}}}
    for metadata, message in (
        ({"Cluster": {}, "Instance": {}}, "Can only set one"),
        ({"Node": {}}, "Unknown parameter"),
        ({"SlurmHealth": {"Component": "Slurmd", "Status": "Healthy"}}, r"enum value set: \[Slurmdbd\]"),
    ):
        with pytest.raises(AwsStandInError, match=message):
            aws.add_event(name, "x", metadata=metadata)
    with pytest.raises(AwsStandInError, match="has no i-0"):
        aws.add_event(name, "x", node="i-00000000", metadata={"Instance": {}})
    with pytest.raises(ClientError, match="regular expression pattern"):
        sagemaker.describe_cluster_event(ClusterName=name, EventId="e")


def test_deep_health_checks_take_nodes_for_a_while(aws, create, sagemaker, model):
    """The named instances, or all of a group, are checked and run again; one in two configurations is checked once."""
    create(model)
    name = model["ClusterName"]
    _, first, second = (summary["InstanceId"] for summary in nodes(sagemaker, name))

    def check(*instance_ids, **changes):
        instances = {"InstanceIds": list(instance_ids)} if instance_ids else {}
        checks = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"], **instances, **changes}
        return sagemaker.start_cluster_health_check(ClusterName=name, DeepHealthCheckConfigurations=[checks])

    def statuses():
        return [node(sagemaker, name, worker)["InstanceStatus"]["Status"] for worker in (first, second)]

    with aws.stopped_clock():
        assert check(first)["ClusterArn"] == sagemaker.describe_cluster(ClusterName=name)["ClusterArn"]
        assert statuses() == ["DeepHealthCheckInProgress", "Running"]
        with pytest.raises(ClientError, match=f"{first} is DeepHealthCheckInProgress"):
            check()
    deadline = time.monotonic() + 600
    while statuses() != ["Running", "Running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    with aws.stopped_clock():
        check(DeepHealthChecks=["InstanceStress", "InstanceConnectivity"])
        assert statuses() == ["DeepHealthCheckInProgress"] * 2


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("has no instance group worker", {"InstanceGroupName": "worker"}),
        ("workers has no instance i-00000000", {"InstanceIds": ["i-00000000"]}),
        ("controller runs the Slurm controller", {"InstanceGroupName": "controller"}),
        ("InstanceConnectivity needs 2 instances", {"DeepHealthChecks": ["InstanceConnectivity"], "InstanceIds": 1}),
        ("no check MultiNodeTrainingValidation", {"DeepHealthChecks": ["MultiNodeTrainingValidation"]}),
        ("satisfy enum value set", {"DeepHealthChecks": ["Stress"]}),
        ("satisfy regular expression pattern", {"InstanceIds": ["x"]}),
    ],
)
def test_deep_health_checks_that_cannot_be_are_refused(create, sagemaker, model, message, changes):
    """Unknown groups, instances and checks, a controller, and one node where two are needed."""
    create(model)
    if changes.get("InstanceIds") == 1:
        changes = {**changes, "InstanceIds": [nodes(sagemaker, model["ClusterName"])[1]["InstanceId"]]}
    checks = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"], **changes}
    with pytest.raises(ClientError, match=message):
        sagemaker.start_cluster_health_check(ClusterName=model["ClusterName"], DeepHealthCheckConfigurations=[checks])


def test_groups_use_training_plans_of_their_type(create, sagemaker, model):
    """A plan is bought as an offering; a cluster's group needs one that exists, of its type."""
    search = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "TargetResources": ["hyperpod-cluster"]}
    (offering,) = sagemaker.search_training_plan_offerings(**search, DurationHours=48)["TrainingPlanOfferings"]
    plan = {"TrainingPlanName": "p5", "TrainingPlanOfferingId": offering["TrainingPlanOfferingId"]}
    arn = sagemaker.create_training_plan(**plan)["TrainingPlanArn"]
    described = sagemaker.describe_training_plan(TrainingPlanName="p5")
    assert (described["TrainingPlanArn"], described["Status"], described["DurationHours"]) == (arn, "Active", 48)
    assert (described["EndTime"] - described["StartTime"]).total_seconds() == 48 * 3600
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.create_training_plan(**plan)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_training_plan(TrainingPlanName="p6")
    for plan_arn, message in ((f"{arn}-2", "does not exist"), (arn, "reserves ml.p5.48xlarge")):
        model["InstanceGroups"][1]["TrainingPlanArn"] = plan_arn
        assert message in failure(create(model))[1]


def test_a_cluster_that_is_not_continuous_has_no_events(create, sagemaker, model):
    """AWS supports events with NodeProvisioningMode Continuous only."""
    create(model)
    with pytest.raises(ClientError, match="NodeProvisioningMode is not Continuous"):
        sagemaker.list_cluster_events(ClusterName=model["ClusterName"])


def test_a_session_starts_on_a_running_node(aws, create, sagemaker, model):
    """Target, document and parameters must fit; the answer is what a Session Manager plugin needs."""
    cluster_id = create(model)["Identifier"].rpartition("/")[2]
    name = settled(sagemaker, model["ClusterName"]) and model["ClusterName"]
    worker = nodes(sagemaker, name)[1]["InstanceId"]
    ssm = aws.client("ssm")
    target = f"sagemaker-cluster:{cluster_id}_workers-{worker}"
    assert {"SessionId", "TokenValue", "StreamUrl"} <= ssm.start_session(Target=target).keys()
    ssh = {"DocumentName": "AWS-StartSSHSession", "Parameters": {"portNumber": ["22"]}}
    assert ssm.start_session(Target=target, **ssh)["SessionId"]
    with pytest.raises(ClientError, match="needs the parameters portNumber"):
        ssm.start_session(Target=target, DocumentName="AWS-StartSSHSession")
    with pytest.raises(ssm.exceptions.InvalidDocument):
        ssm.start_session(Target=target, DocumentName="of-another-account")
    content = json.dumps({"schemaVersion": "1.0", "description": "", "sessionType": "Standard_Stream", "inputs": {}})
    ssm.create_document(Name="own-document", DocumentType="Session", DocumentFormat="JSON", Content=content)
    assert ssm.start_session(Target=target, DocumentName="own-document")["SessionId"]
    for wrong in (f"sagemaker-cluster:{cluster_id}_controller-{worker}", worker):
        with pytest.raises(ssm.exceptions.TargetNotConnected):
            ssm.start_session(Target=wrong)
    with aws.stopped_clock():
        sagemaker.batch_reboot_cluster_nodes(ClusterName=name, NodeIds=[worker])
        with pytest.raises(ssm.exceptions.TargetNotConnected):
            ssm.start_session(Target=target)


def settled(sagemaker, name):
    """The client, when the cluster is in service."""
    deadline = time.monotonic() + 600
    while sagemaker.describe_cluster(ClusterName=name)["ClusterStatus"] != "InService" and time.monotonic() < deadline:
        time.sleep(0.05)
    return sagemaker


def test_delete_cluster_of_sagemaker_deletes_too(control, outcome, sagemaker, model):
    """Both APIs act on one store, and the inventory sees it."""
    arn = outcome(control.create_resource(TypeName=TYPE, DesiredState=json.dumps(model)))["Identifier"]
    assert sagemaker.delete_cluster(ClusterName=model["ClusterName"])["ClusterArn"] == arn
    with pytest.raises(sagemaker.exceptions.ConflictException):
        sagemaker.delete_cluster(ClusterName=model["ClusterName"])
    deadline = time.monotonic() + 600
    while sagemaker.list_clusters()["ClusterSummaries"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sagemaker.list_clusters()["ClusterSummaries"] == []


def test_inventory_names_the_cluster(aws, create, model):
    """A cluster is something left."""
    create(model)
    arn = aws.client("sagemaker").describe_cluster(ClusterName=model["ClusterName"])["ClusterArn"]
    assert f"{TYPE} {arn}" in aws.inventory()


def test_describe_type_gives_awss_schema(aws):
    """CloudFormation's DescribeType answers with the schema that Terraform validates against."""
    cloudformation = aws.client("cloudformation")
    described = cloudformation.describe_type(Type="RESOURCE", TypeName=TYPE)
    schema = json.loads(described["Schema"])
    assert schema["typeName"] == TYPE
    assert schema["primaryIdentifier"] == ["/properties/ClusterArn"]
    with pytest.raises(cloudformation.exceptions.TypeNotFoundException, match="AWS::S3::Bucket"):
        cloudformation.describe_type(Type="RESOURCE", TypeName="AWS::S3::Bucket")


@pytest.fixture
def file_system(aws):
    """A function that makes a Lustre file system in a VPC of its own; returns it, its subnet and security group."""

    def make(block):
        ec2 = aws.client("ec2")
        vpc = ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]
        group_id = ec2.create_security_group(GroupName="lustre", Description="-", VpcId=vpc)["GroupId"]
        lustre = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [{"GroupId": group_id}]}
        ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[lustre])
        made = aws.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=1200,
            SubnetIds=[subnet["SubnetId"]],
            SecurityGroupIds=[group_id],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
        )["FileSystem"]
        return made, subnet, group_id

    return make


def test_a_file_system_is_reached_by_route_and_rule(aws, create, model, put_scripts, subnet, file_system):
    """In another VPC it needs a peering with a route, and an inbound rule of its group for the nodes."""
    ec2 = aws.client("ec2")
    made, other_subnet, group_id = file_system("10.9.0.0/24")
    parameters = {**PARAMETERS, "fsx_dns_name": made["DNSName"], "fsx_mountname": "fsx"}
    source = put_scripts("elsewhere", parameters)
    for instance_group in model["InstanceGroups"]:
        instance_group["LifeCycleConfig"]["SourceS3Uri"] = source
    _, message = failure(create(model))
    assert f"Nodes of workers cannot reach {made['DNSName']}: it is in {other_subnet['VpcId']}" in message
    peering = ec2.create_vpc_peering_connection(VpcId=subnet["VpcId"], PeerVpcId=other_subnet["VpcId"])
    peering_id = peering["VpcPeeringConnection"]["VpcPeeringConnectionId"]
    ec2.accept_vpc_peering_connection(VpcPeeringConnectionId=peering_id)
    filters = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}, {"Name": "association.main", "Values": ["true"]}]
    (table,) = ec2.describe_route_tables(Filters=filters)["RouteTables"]
    route = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "10.9.0.0/24"}
    ec2.create_route(**route, VpcPeeringConnectionId=peering_id)
    _, message = failure(create(model))
    assert f"no inbound rule of {group_id} lets them use TCP port 988" in message
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
    ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[rule])
    assert create(model)["OperationStatus"] == "SUCCESS"
    ec2.delete_route(**route)


def test_scripts_are_in_any_bucket_that_the_role_reads(aws, create, model):
    """AWS's managed policy reads buckets with its prefix alone; a role's policies may read others."""
    s3, iam = aws.client("s3"), aws.client("iam")
    s3.create_bucket(Bucket="own-scripts", CreateBucketConfiguration={"LocationConstraint": aws.region})
    for key in ("provisioning_parameters.json", "on_create.sh"):
        s3.put_object(Bucket="own-scripts", Key=f"base/{key}", Body=json.dumps(PARAMETERS).encode())
    arn = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"]
    for instance_group in model["InstanceGroups"]:
        instance_group["LifeCycleConfig"]["SourceS3Uri"] = "s3://own-scripts/base"
        instance_group["ExecutionRole"] = arn
    assert "must begin with s3://sagemaker-" in failure(create(model))[1]

    def put(effect, bucket):
        statement = {"Effect": effect, "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_role_policy(RoleName="reader", PolicyName="scripts", PolicyDocument=document)

    put("Allow", "own-*")
    assert create(model)["OperationStatus"] == "SUCCESS"
    model["ClusterName"] = "attached"
    iam.attach_role_policy(RoleName="reader", PolicyArn="arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess")
    put("Deny", "own-scripts")
    assert "must allow s3:GetObject in its bucket" in failure(create(model))[1]
    iam.delete_role_policy(RoleName="reader", PolicyName="scripts")
    assert create(model)["OperationStatus"] == "SUCCESS"
