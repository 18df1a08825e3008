"""The process: it starts, is found, keeps to itself, says what is left, and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError

from podwright_rehearsal.aws import AwsStandIn, AwsStandInError

pytestmark = pytest.mark.slow

OWNER = """
import os, pathlib, sys
from podwright_rehearsal.aws import AwsStandIn
print(AwsStandIn(directory=pathlib.Path(sys.argv[1])).start().pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.2) as stand_in:
        yield stand_in


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_dead(pid):
    deadline = time.monotonic() + 600
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_listens_on_the_loopback_address_only(aws):
    """No other machine reaches the stand-in."""
    url = urlsplit(aws.endpoint_url)
    assert url.hostname == "127.0.0.1"
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", url.port))


def test_two_accounts_run_side_by_side(aws, tmp_path):
    """Each stand-in has its own port and its own resources."""
    with AwsStandIn(directory=tmp_path) as other:
        other.client("iam").create_role(RoleName="only-there", AssumeRolePolicyDocument='{"Version": "2012-10-17"}')
        assert [role["RoleName"] for role in other.client("iam").list_roles()["Roles"]] == ["only-there"]
        assert aws.client("iam").list_roles()["Roles"] == []


def test_stop_ends_the_process_and_may_be_repeated(tmp_path):
    """After stop() nothing runs and nothing is answered."""
    stand_in = AwsStandIn(directory=tmp_path).start()
    pid = stand_in.pid
    stand_in.stop()
    stand_in.stop()
    assert not is_alive(pid)
    with pytest.raises(AwsStandInError, match="not running"):
        _ = stand_in.endpoint_url


def test_starting_twice_is_an_error(aws):
    """A second start() would lose the first process."""
    with pytest.raises(AwsStandInError, match=f"already runs as process {aws.pid}"):
        aws.start()


def test_process_dies_with_its_owner(tmp_path):
    """An owner that is killed leaves no stand-in behind."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as owner:
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.send_signal(signal.SIGKILL)
    assert wait_until_dead(pid)


def test_failed_start_shows_the_log(tmp_path):
    """A process that cannot start says why."""
    with pytest.raises(AwsStandInError, match="invalid float value: 'soon'"):
        AwsStandIn(directory=tmp_path, transition_s="soon").start()


def test_environment_leads_boto3_to_the_stand_in(aws, monkeypatch):
    """Whatever the user's environment says, boto3 under environment() talks to the stand-in."""
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    session = boto3.Session()
    assert session.region_name == aws.region
    assert session.client("sts").get_caller_identity()["Account"] == "123456789012"
    assert session.client("s3").meta.endpoint_url == aws.endpoint_url
    session.client("s3").list_buckets()


def test_client_ignores_the_users_environment(aws, monkeypatch):
    """Clients of the stand-in do not reach a real account."""
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert aws.client("sts").get_caller_identity()["Account"] == "123456789012"


def test_a_fresh_account_has_an_empty_inventory(tmp_path):
    """The inventory leaves out what a fresh account has."""
    with AwsStandIn(directory=tmp_path, region="eu-central-1") as stand_in:
        assert stand_in.client("ec2").describe_vpcs()["Vpcs"]
        assert stand_in.inventory() == []


def test_inventory_names_everything_until_it_is_deleted(aws):
    """Each kind of resource appears with its type and id, and disappears with its deletion."""
    ec2, s3, iam = aws.client("ec2"), aws.client("s3"), aws.client("iam")
    before = aws.inventory()
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    zone = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", AvailabilityZoneId=zone)["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=vpc)["GroupId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    service = {"ServiceName": "com.amazonaws.us-west-2.s3", "VpcEndpointType": "Gateway"}
    endpoint = ec2.create_vpc_endpoint(VpcId=vpc, **service)["VpcEndpoint"]["VpcEndpointId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    s3.create_bucket(Bucket="inventory", CreateBucketConfiguration={"LocationConstraint": aws.region})
    s3.put_bucket_versioning(Bucket="inventory", VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket="inventory", Key="a/b", Body=b"-")["VersionId"]
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    policy = iam.create_policy(PolicyName="own", PolicyDocument=document)["Policy"]
    found = set(aws.inventory()) - set(before)
    assert {
        f"AWS::EC2::VPC {vpc}",
        f"AWS::EC2::Subnet {subnet}",
        f"AWS::EC2::SecurityGroup {group}",
        f"AWS::EC2::InternetGateway {gateway}",
        f"AWS::EC2::EIP {address}",
        f"AWS::EC2::NatGateway {nat}",
        f"AWS::EC2::VPCEndpoint {endpoint}",
        f"AWS::EC2::RouteTable {table}",
        "AWS::S3::Bucket inventory",
        f"AWS::S3::Object s3://inventory/a/b?versionId={version}",
        f"AWS::IAM::ManagedPolicy {policy['Arn']}",
    } <= found
    iam.delete_policy(PolicyArn=policy["Arn"])
    s3.delete_object(Bucket="inventory", Key="a/b", VersionId=version)
    s3.delete_bucket(Bucket="inventory")
    ec2.delete_nat_gateway(NatGatewayId=nat)
    ec2.release_address(AllocationId=address)
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint])
    ec2.delete_route_table(RouteTableId=table)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    ec2.delete_security_group(GroupId=group)
    ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_vpc(VpcId=vpc)
    assert aws.inventory() == before


def test_aws_managed_policies_can_be_attached(aws):
    """The policy that HyperPod's nodes need is there, as in AWS."""
    iam = aws.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument='{"Version": "2012-10-17"}')
    arn = "arn:aws:iam::aws:policy/AmazonSageMakerClusterInstanceRolePolicy"
    iam.attach_role_policy(RoleName="node", PolicyArn=arn)
    attached = iam.list_attached_role_policies(RoleName="node")["AttachedPolicies"]
    assert [policy["PolicyArn"] for policy in attached] == [arn]
    iam.detach_role_policy(RoleName="node", PolicyArn=arn)
    iam.delete_role(RoleName="node")


def test_requests_at_the_same_time_do_not_lose_each_other(aws):
    """Eight clients at once create as many buckets and roles as they asked for."""

    def make(number):
        s3, iam = clients[number % len(clients)]
        s3.create_bucket(Bucket=f"at-once-{number}", CreateBucketConfiguration={"LocationConstraint": aws.region})
        iam.create_role(RoleName=f"at-once-{number}", AssumeRolePolicyDocument='{"Version": "2012-10-17"}')

    clients = [(aws.client("s3"), aws.client("iam")) for _ in range(8)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(make, range(40)))
    s3, iam = clients[0]
    assert len([b for b in s3.list_buckets()["Buckets"] if b["Name"].startswith("at-once-")]) == 40
    assert len([r for r in iam.list_roles()["Roles"] if r["RoleName"].startswith("at-once-")]) == 40
    for number in range(40):
        s3.delete_bucket(Bucket=f"at-once-{number}")
        iam.delete_role(RoleName=f"at-once-{number}")


def test_a_topic_that_no_event_would_reach_is_refused(aws, monkeypatch):
    """EventBridge meets no condition of a topic's policy, so a policy with one for it is refused; an alarm's may."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    sns = boto3.Session().client("sns")  # the default one would keep this account for later tests
    topic = sns.create_topic(Name="notices")["TopicArn"]

    def allow(service: str) -> None:
        condition = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
        publish = {"Effect": "Allow", "Action": "sns:Publish", "Resource": topic, "Principal": {"Service": service}}
        policy = {"Version": "2012-10-17", "Statement": [{**publish, "Condition": condition}]}
        sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=json.dumps(policy))

    allow("cloudwatch.amazonaws.com")
    with pytest.raises(ClientError, match="EventBridge cannot publish") as refused:
        allow("events.amazonaws.com")
    assert refused.value.response["Error"]["Code"] == "InvalidParameter"


def test_another_region_is_refused(aws, monkeypatch):
    """A provider configured for another region gets an error about the region, not about missing subnets."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    elsewhere = boto3.Session().client("fsx", region_name="eu-west-1")
    with pytest.raises(ClientError, match="us-west-2, not eu-west-1") as refused:
        elsewhere.describe_file_systems()
    assert refused.value.response["Error"]["Code"] == "InvalidSignatureException"


def test_log_names_the_operations(aws):
    """One line per request: the service, the operation, the status."""
    aws.client("sts").get_caller_identity()
    aws.client("fsx").describe_file_systems()
    log = aws.log.read_text(encoding="utf-8")
    assert "sts GetCallerIdentity: 200 OK" in log
    assert "fsx DescribeFileSystems: 200 OK" in log


def test_a_new_subnet_gives_no_public_addresses(aws):
    """The first subnet in a zone is not the zone's default: only a default VPC has those."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZoneId="usw2-az1")["Subnet"]
    assert (subnet["MapPublicIpOnLaunch"], subnet["DefaultForAz"]) == (False, False)
    ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=vpc)


def test_a_rule_between_groups_keeps_its_description(aws):
    """A description that came back empty would be a change in every plan."""
    ec2 = aws.client("ec2")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="described", Description="-", VpcId=vpc)["GroupId"]
    peer = {"GroupId": group, "Description": "all within the group"}
    ec2.authorize_security_group_ingress(
        GroupId=group, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [peer]}]
    )
    rules = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])["SecurityGroupRules"]
    assert [rule["Description"] for rule in rules if not rule["IsEgress"]] == ["all within the group"]
    ec2.delete_security_group(GroupId=group)


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_rule_revoked_twice_is_named_as_gone(aws, direction):
    """The second answer is the one that Terraform takes for done when the first was lost on the way."""
    ec2 = aws.client("ec2")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName=f"revoked-{direction}", Description="-", VpcId=vpc)["GroupId"]
    permission = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 1, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    authorize = getattr(ec2, f"authorize_security_group_{direction}")
    rule = authorize(GroupId=group, IpPermissions=[permission])["SecurityGroupRules"][0]["SecurityGroupRuleId"]
    revoke = getattr(ec2, f"revoke_security_group_{direction}")
    revoke(GroupId=group, SecurityGroupRuleIds=[rule])
    with pytest.raises(ClientError, match=rule) as refused:
        revoke(GroupId=group, SecurityGroupRuleIds=[rule])
    assert refused.value.response["Error"]["Code"] == "InvalidSecurityGroupRuleId.NotFound"
    ec2.delete_security_group(GroupId=group)


def test_a_bucket_policy_is_enforced_as_over_tls(aws):
    """A denial of requests without TLS leaves the loopback alone; any other denial denies."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="policed", CreateBucketConfiguration={"LocationConstraint": aws.region})
    s3.put_object(Bucket="policed", Key="a", Body=b"-")
    denial = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::policed/*"}
    conditional = {**denial, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
    s3.put_bucket_policy(Bucket="policed", Policy=json.dumps({"Version": "2012-10-17", "Statement": [conditional]}))
    assert s3.get_object(Bucket="policed", Key="a")["Body"].read() == b"-"
    s3.put_bucket_policy(Bucket="policed", Policy=json.dumps({"Version": "2012-10-17", "Statement": [denial]}))
    with pytest.raises(ClientError) as refused:
        s3.get_object(Bucket="policed", Key="a")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    s3.delete_bucket_policy(Bucket="policed")
    s3.delete_object(Bucket="policed", Key="a")
    s3.delete_bucket(Bucket="policed")


def test_nat_gateways_are_found_by_their_tags(aws):
    """Of two gateways, a filter by tag gives the one that has it."""
    ec2 = aws.client("ec2")
    subnet_id = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    made = []
    for name in ("one", "two"):
        tags = [{"ResourceType": "natgateway", "Tags": [{"Key": "podwright:cluster", "Value": name}]}]
        request = {"SubnetId": subnet_id, "ConnectivityType": "private", "TagSpecifications": tags}
        made.append(ec2.create_nat_gateway(**request)["NatGateway"]["NatGatewayId"])
    wanted = [{"Name": "tag:podwright:cluster", "Values": ["two"]}]
    found = ec2.describe_nat_gateways(Filters=wanted)["NatGateways"]
    assert [item["NatGatewayId"] for item in found] == made[1:]
    for nat_gateway_id in made:
        ec2.delete_nat_gateway(NatGatewayId=nat_gateway_id)


def test_an_empty_object_is_stored(aws):
    """An upload without content, which boto3 announces before it sends it, is answered."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="sagemaker-empty", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket="sagemaker-empty", Key="nothing", Body=b"")
    assert s3.get_object(Bucket="sagemaker-empty", Key="nothing")["Body"].read() == b""
    s3.delete_object(Bucket="sagemaker-empty", Key="nothing")
    s3.delete_bucket(Bucket="sagemaker-empty")


def test_a_deleted_nat_gateway_leaves_no_network_interface(aws):
    """Terraform deletes the subnet next, which an interface would keep."""
    ec2 = aws.client("ec2")
    subnet_id = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    request = {"SubnetId": subnet_id, "ConnectivityType": "private"}
    gateway_id = ec2.create_nat_gateway(**request)["NatGateway"]["NatGatewayId"]
    assert ec2.describe_network_interfaces()["NetworkInterfaces"]
    ec2.delete_nat_gateway(NatGatewayId=gateway_id)
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []


def test_a_rule_for_all_protocols_is_changed_without_ports(aws):
    """AWS asks for no ports where a rule has none."""
    ec2 = aws.client("ec2")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="all-protocols", Description="-", VpcId=vpc)["GroupId"]
    permission = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    answer = ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[permission])
    rule_id = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
    change = {"IpProtocol": "-1", "CidrIpv4": "10.0.0.0/8", "Description": "after"}
    ec2.modify_security_group_rules(
        GroupId=group, SecurityGroupRules=[{"SecurityGroupRuleId": rule_id, "SecurityGroupRule": change}]
    )
    rules = ec2.describe_security_group_rules(SecurityGroupRuleIds=[rule_id])["SecurityGroupRules"]
    assert [rule.get("Description") for rule in rules] == ["after"]
    ec2.delete_security_group(GroupId=group)


def test_a_budget_keeps_its_tags_and_subscribers(aws):
    """Terraform reads both back and would change the budget in every plan."""
    budgets = aws.client("budgets")
    account = aws.client("sts").get_caller_identity()["Account"]
    limit = {"Amount": "10", "Unit": "USD"}
    budget = {"BudgetName": "monthly", "BudgetLimit": limit, "TimeUnit": "MONTHLY", "BudgetType": "COST"}
    notification = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
    subscribers = [{"SubscriptionType": "EMAIL", "Address": "a@example.com"}]
    tags = [{"Key": "podwright:cluster", "Value": "one"}]
    budgets.create_budget(
        AccountId=account,
        Budget=budget,
        NotificationsWithSubscribers=[{"Notification": notification, "Subscribers": subscribers}],
        ResourceTags=tags,
    )
    arn = f"arn:aws:budgets::{account}:budget/monthly"
    assert budgets.list_tags_for_resource(ResourceARN=arn)["ResourceTags"] == tags
    answer = budgets.describe_subscribers_for_notification(
        AccountId=account, BudgetName="monthly", Notification=notification
    )
    assert answer["Subscribers"] == subscribers
    budgets.delete_budget(AccountId=account, BudgetName="monthly")


def test_a_prometheus_workspace_keeps_its_key(aws):
    """A workspace that came back without its key would be replaced."""
    amp = aws.client("amp")
    key = f"arn:aws:kms:{aws.region}:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    encrypted = amp.create_workspace(alias="encrypted", kmsKeyArn=key)["workspaceId"]
    plain = amp.create_workspace(alias="plain")["workspaceId"]
    keys = [amp.describe_workspace(workspaceId=item)["workspace"].get("kmsKeyArn") for item in (encrypted, plain)]
    assert keys == [key, None]
    for workspace_id in (encrypted, plain):
        amp.delete_workspace(workspaceId=workspace_id)
