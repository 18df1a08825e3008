"""AWS's ports and limits, each with the page that says so. Standard library only."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args


class PortRange(NamedTuple):
    """An inclusive range of TCP ports."""

    from_port: int
    to_port: int


MAX_PORT = 65_535

# Between Lustre clients and servers. AWS's newer text says 1021-1023; older clients use the rest of the range.
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE_PORTS = (PortRange(988, 988), PortRange(1018, 1023))
# NFS 4.1, with which nodes mount OpenZFS, needs no other port.
# https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/limit-access-security-groups.html
NFS_PORT = 2049
HTTPS_PORT = 443
ALL_PROTOCOLS = "-1"  # EC2's word for every protocol and port
ANYWHERE = "0.0.0.0/0"

# ---- clusters and instance groups ---------------------------------------------------------------

# Properties of a cluster that only a new one can have: createOnlyProperties of its CloudFormation schema. The
# Slurm part of Orchestrator is updated without interruption.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sagemaker-cluster.html
CLUSTER_CREATE_ONLY = ("ClusterName", "VpcConfig", "Orchestrator/Eks")

# Each cluster has the log group LOG_GROUPS/NAME/ID, and its nodes write metrics into the namespace of the same name.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-troubleshooting-slurm.html
LOG_GROUPS = "/aws/sagemaker/Clusters"

# Names of clusters and of instance groups.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html
CLUSTER_NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
PARTITION_PATTERN = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?")  # AWS's examples have ml.g5.12xlarge
MAX_CLUSTER_NAME_LENGTH = 63
MAX_INSTANCE_GROUPS = 100
MAX_SUBNETS = 16
MAX_SECURITY_GROUPS = 5
MAX_CLUSTER_TAGS = 50
# Of any other resource. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
MAX_RESOURCE_TAGS = 50
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html
MAX_TAG_KEY_LENGTH = 128
MAX_TAG_VALUE_LENGTH = 256
# RDS keeps this prefix: https://docs.aws.amazon.com/AmazonRDS/latest/APIReference/API_Tag.html
RDS_TAG_PREFIX = "rds:"
# Besides letters, digits and spaces: https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
TAG_PUNCTUATION = "_.:/=+-@"
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterAccountingDatabase.html
ACCOUNTING_DATABASE_ENDPOINT_PATTERN = re.compile(
    r"(?=.{1,255}$)([a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*"
)
# Without wildcards, which AWS's pattern lets pass: the ARN is in a policy, and * would be every secret of the account.
# https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_CreateSecret.html (Name), and RDS's own, rds!db-…
SECRET_ARN_PATTERN = re.compile(r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9\-]*:[0-9]{12}:secret:[A-Za-z0-9/_+=.@!-]+")
# HyperPod puts every node into dev: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ref.html
# A partition called DEFAULT holds the defaults of the others: https://slurm.schedmd.com/slurm.conf.html
RESERVED_PARTITIONS = ("default", "dev")

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
MIN_INSTANCE_COUNT = 0
MAX_INSTANCE_COUNT = 6758
# Instance types of one group:
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceRequirements.html
MAX_INSTANCE_TYPES = 20
MIN_THREADS_PER_CORE = 1

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterEbsVolumeConfig.html
MIN_VOLUME_GIB = 1
MAX_VOLUME_GIB = 16384
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
TRAINING_PLAN_ARN_PATTERN = re.compile(r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SearchTrainingPlanOfferings.html (InstanceType)
TRAINING_PLAN_TYPES = (
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.4xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.p5en.48xlarge",
    "ml.p6-b200.48xlarge",
    "ml.p6-b300.48xlarge",
    "ml.p6e-gb200.36xlarge",
    "ml.trn1.32xlarge",
    "ml.trn2.48xlarge",
)
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-deep-health-checks.html
MIN_CONNECTIVITY_NODES = 2
IMAGE_ID_PATTERN = re.compile(r"(ami-[0-9a-fA-F]{8,17}|default)")
# Stricter than CloudFormation's pattern, which accepts an empty minute, month or year:
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ScheduledUpdateConfig.html
_DAY = r"(MON|TUE|WED|THU|FRI|SAT|SUN|[1-7]|\?|L|[1-7]#[1-5]|[1-7]L)"
UPDATE_SCHEDULE_PATTERN = re.compile(
    r"cron\(([0-5]?[0-9]) ([01]?[0-9]|2[0-3]) (?P<day>0?[1-9]|[12][0-9]|3[01]|\?) "
    rf"(?P<month>0?[1-9]|1[0-2]|\*|\*/([1-9]|1[0-2])) (?P<weekday>{_DAY}) (20[2-9][0-9]|\*)\)"
)
DAYS_OF_SHORT_MONTHS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DeploymentConfiguration.html
MAX_UPDATE_WAIT_S = 3600
MAX_ROLLBACK_ALARMS = 10
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlarmDetails.html
ALARM_NAME_PATTERN = re.compile(r"(?!\s*$).{1,255}")

# https://docs.aws.amazon.com/accounts/latest/reference/manage-acct-identifiers.html
ACCOUNT_ID_PATTERN = re.compile(r"[0-9]{12}")

# ---- buckets ------------------------------------------------------------------------------------

# AWS's managed policy reads no other bucket; a role with other permissions may.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
BUCKET_NAME_PREFIX = "sagemaker-"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET_NAME_PATTERN = re.compile(
    r"(?!xn--|sthree-|amzn-s3-demo-)"
    r"(?!.*(\.\.|-s3alias$|--ol-s3$|\.mrap$|--x-s3$|--table-s3$))"
    r"(?![0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$)"
    r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    re.ASCII,
)
BUCKET_NAME_TEXT = "3 to 63 lower-case letters, digits, dots and hyphens"
BUCKET_NAME_HINT = (
    "No two dots in a row, no IP address, no prefix xn--, sthree- or amzn-s3-demo-, and no suffix -s3alias, --ol-s3, "
    ".mrap, --x-s3 or --table-s3."
)
# Terraform appends 26 digits to a prefix; a name holds 63 characters.
# https://github.com/hashicorp/terraform-provider-aws/blob/main/website/docs/r/s3_bucket.html.markdown
BUCKET_PREFIX_PATTERN = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]*")
MAX_BUCKET_PREFIX_LENGTH = 37

# By deployment type. SCRATCH_1 is left out: AWS keeps it for those who have it.
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html (StorageType)
LUSTRE_STORAGE_TYPES = {
    "PERSISTENT_2": ("SSD", "INTELLIGENT_TIERING"),
    "PERSISTENT_1": ("SSD", "HDD"),
    "SCRATCH_2": ("SSD",),
}
# MB/s for each TiB, by deployment and storage type; the others have no choice. The default comes first.
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
LUSTRE_THROUGHPUTS = {
    ("PERSISTENT_2", "SSD"): (250, 125, 500, 1000),
    ("PERSISTENT_1", "SSD"): (200, 50, 100),
    ("PERSISTENT_1", "HDD"): (40, 12),
}
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html (StorageCapacity)
MIN_LUSTRE_CAPACITY_GIB = 1200
LUSTRE_CAPACITY_STEP_GIB = 2400
# The keys of both are the throughput per TiB.
LUSTRE_HDD_CAPACITY_STEPS_GIB = {12: 6000, 40: 1800}
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html
LUSTRE_EFA_CAPACITY_STEPS_GIB = {125: 38_400, 250: 19_200, 500: 9600, 1000: 4800}
LUSTRE_TIERING_THROUGHPUT_STEP_MBPS = 4000
MAX_LUSTRE_TIERING_THROUGHPUT_MBPS = 2_000_000
LustreVersion = Literal["2.15", "2.12", "2.10"]
LustreCompression = Literal["LZ4", "NONE"]
LUSTRE_VERSIONS = get_args(LustreVersion)
LUSTRE_COMPRESSIONS = get_args(LustreCompression)
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreMetadataConfiguration.html
LUSTRE_METADATA_IOPS_STEP = 12_000
LUSTRE_METADATA_IOPS = (1500, 3000, 6000, *range(LUSTRE_METADATA_IOPS_STEP, 192_001, LUSTRE_METADATA_IOPS_STEP))
LUSTRE_TIERING_METADATA_IOPS = (6000, 12_000)  # the default comes first
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html
MAX_DATA_REPOSITORIES = 8
DATA_REPOSITORY_PATTERN = re.compile(
    r"s3://(?P<bucket>[^/]+)(/(?!\.{1,2}(/|$))[^/\x00-\x1f]+)*/?",
)

# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
# By deployment type, MB/s; the default comes first.
_FIRST_GENERATION_MBPS = (128, 64, 256, 512, 1024, 2048, 3072, 4096)
_SECOND_GENERATION_MBPS = (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10_240)
OPENZFS_THROUGHPUTS_MBPS = {
    "SINGLE_AZ_1": _FIRST_GENERATION_MBPS,
    "SINGLE_AZ_HA_1": _FIRST_GENERATION_MBPS,
    "SINGLE_AZ_2": _SECOND_GENERATION_MBPS,
    "SINGLE_AZ_HA_2": _SECOND_GENERATION_MBPS,
    "MULTI_AZ_1": _SECOND_GENERATION_MBPS,
}
OPENZFS_SUBNETS = {"MULTI_AZ_1": 2}  # one of each zone; the others have one
MIN_OPENZFS_CAPACITY_GIB = 64
MAX_OPENZFS_CAPACITY_GIB = 524_288
OPENZFS_CAPACITY_TEXT = f"{MIN_OPENZFS_CAPACITY_GIB} to {MAX_OPENZFS_CAPACITY_GIB}"
OpenZfsCompression = Literal["ZSTD", "LZ4", "NONE"]
OPENZFS_COMPRESSIONS = get_args(OpenZfsCompression)

MAX_BACKUP_RETENTION_DAYS = 90
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_LustreFileSystemConfiguration.html
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html
MAX_LUSTRE_EFA_CONNECTIONS = 1024
LUSTRE_MOUNT_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,8}")
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_Backup.html
BACKUP_ID_PATTERN = re.compile(r"backup-[0-9a-f]{8,}")
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html; Monday is 1.
WEEKLY_MAINTENANCE_PATTERN = re.compile(r"[1-7]:([01]\d|2[0-3]):[0-5]\d")
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_LustreRootSquashConfiguration.html
ROOT_SQUASH_PATTERN = re.compile(r"0:0|[1-9]\d{0,9}:[1-9]\d{0,9}")
MAX_ROOT_SQUASH_ID = 4_294_967_294
MAX_NO_SQUASH_NIDS = 64
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_LustreLogCreateConfiguration.html
LustreLogLevel = Literal["WARN_ERROR", "ERROR_ONLY", "WARN_ONLY", "DISABLED"]
LUSTRE_LOG_LEVELS = get_args(LustreLogLevel)
FSX_LOG_GROUP_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:logs:[a-z0-9-]+:\d{12}:log-group:/aws/fsx[\w./#-]{0,504}(:\*)?")
# AWS's pattern lets any text pass behind the id: https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
FSX_DNS_NAME_PATTERN = re.compile(r"fs-[0-9a-f]{8,17}\.fsx\.[a-z0-9-]+(\.[a-z0-9-]+){2,5}")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-sagemaker-cluster-clusterfsxlustreconfig.html
# Without . and .., which AWS's pattern lets pass, and without names that Linux refuses for their length.
MOUNT_PATH_PATTERN = re.compile(r"(?=.{1,1024}$)(/(?!\.{1,2}(/|$))[a-zA-Z0-9._-]{1,255})+")

# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html and subnet-sizing.html
MIN_CIDR_PREFIX_LENGTH = 16
MAX_CIDR_PREFIX_LENGTH = 28
RESERVED_ADDRESSES_PER_SUBNET = 5
VPC_PREFIX_TEXT = f"/{MIN_CIDR_PREFIX_LENGTH} to /{MAX_CIDR_PREFIX_LENGTH}"
# https://docs.aws.amazon.com/global-infrastructure/latest/regions/az-ids.html
AVAILABILITY_ZONE_ID_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-az[0-9]+")

# A VPC takes further private blocks only from the private range of its first block, and never one of 198.19.0.0/16.
# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html
PRIVATE_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
AWS_OWN_RANGE = "198.19.0.0/16"
# By the first block's range; AWS's page refuses 10.0.0.0/16 also beside blocks of itself.
REFUSED_RANGES_BESIDE = {"172.16.0.0/12": "172.31.0.0/16", "10.1.0.0/16": "10.0.0.0/16"}
# Docker's own network; SageMaker and other services use it too, so AWS advises against it for a VPC.
# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html
DOCKER_RANGE = "172.17.0.0/16"
# No addresses of hosts. https://www.iana.org/assignments/iana-ipv4-special-registry/
UNUSABLE_RANGES = {
    "0.0.0.0/8": "this network",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
# Blocks of a VPC, its first included. https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html
DEFAULT_VPC_BLOCKS = 5
MAX_VPC_BLOCKS = 50
# No security group's name begins so, and groups are named after the cluster.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateSecurityGroup.html
SECURITY_GROUP_ID_PREFIX = "sg-"
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html
RESOURCE_ID_DIGITS = r"-([0-9a-f]{8}|[0-9a-f]{17})"

# What nodes ask of AWS's APIs, and what only some users do.
# https://docs.aws.amazon.com/vpc/latest/privatelink/aws-services-privatelink-support.html
STANDARD_ENDPOINTS = (
    "ssm",
    "ssmmessages",
    "ec2messages",
    "logs",
    "monitoring",
    "sts",
    "ecr.api",
    "ecr.dkr",
    "sagemaker.api",
)
ENDPOINTS = (*STANDARD_ENDPOINTS, "sagemaker.runtime", "ec2", "fsx", "kms", "secretsmanager", "sns", "aps-workspaces")

# The group is the region. https://docs.aws.amazon.com/kms/latest/APIReference/API_DescribeKey.html
# A key's id is a UUID, or mrk- and 32 digits: https://docs.aws.amazon.com/kms/latest/developerguide/concepts.html
KEY_ARN_PATTERN = re.compile(
    r"arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:key/(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32})"
)

# https://docs.aws.amazon.com/AmazonS3/latest/API/API_NoncurrentVersionExpiration.html
MIN_NONCURRENT_DAYS = 1

# https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html
MAX_ROLE_NAME_LENGTH = 64
ROLE_PATH_PATTERN = re.compile(r"(?=.{1,512}$)/([\x21-\x2e\x30-\x7e]+/)*")
ROLE_NAME_PATTERN = re.compile(rf"[A-Za-z0-9_+=,.@-]{{1,{MAX_ROLE_NAME_LENGTH}}}")
# https://docs.aws.amazon.com/IAM/latest/APIReference/API_PutRolePolicy.html
ROLE_POLICY_NAME_PATTERN = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
# Of all inline policies of a role together, without white space.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
MAX_ROLE_POLICY_LENGTH = 10_240
# Managed policies of a role, without an increased quota.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
DEFAULT_ROLE_POLICIES = 10
# https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_job-functions.html
POLICIES_OF_ADMINISTRATORS = frozenset({"AdministratorAccess", "IAMFullAccess", "PowerUserAccess"})
# Of AWS: each reads the objects of every bucket of the account.
# https://docs.aws.amazon.com/aws-managed-policy/latest/reference/policy-list.html
POLICIES_THAT_READ_BUCKETS = frozenset({"AmazonS3FullAccess", "AmazonS3ReadOnlyAccess", "ReadOnlyAccess"})
# With one of these on every role, user or policy, a caller gets permissions that it does not have.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
TAKEOVER_ACTIONS = frozenset(
    {
        "iam:AddUserToGroup",
        "iam:AttachGroupPolicy",
        "iam:AttachRolePolicy",
        "iam:AttachUserPolicy",
        "iam:CreateAccessKey",
        "iam:CreateLoginProfile",
        "iam:CreatePolicyVersion",
        "iam:DeleteRolePermissionsBoundary",
        "iam:PassRole",
        "iam:PutGroupPolicy",
        "iam:PutRolePolicy",
        "iam:PutUserPolicy",
        "iam:SetDefaultPolicyVersion",
        "iam:UpdateAssumeRolePolicy",
        "iam:UpdateLoginProfile",
        "sts:AssumeRole",
    }
)
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
CONDITION_OPERATOR_PATTERN = re.compile(
    r"(ForAllValues:|ForAnyValue:)?("
    r"(String(Not)?Equals(IgnoreCase)?|String(Not)?Like|(Numeric|Date)((Not)?Equals|(LessThan|GreaterThan)(Equals)?)"
    r"|Bool|BinaryEquals|(Not)?IpAddress|Arn(Not)?(Equals|Like))(IfExists)?|Null)"
)
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
CONDITION_KEY_PATTERN = re.compile(r"[A-Za-z0-9-]+:\S[^\n]*|[A-Za-z0-9.-]+/\S+:\S+")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
ROLE_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
# https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html
EXTERNAL_ID_PATTERN = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)
ROLE_SESSION_NAME_PATTERN = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
# https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
POLICY_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9_+=,.@/-]+")

# ---- accounting ---------------------------------------------------------------------------------

MYSQL_PORT = 3306
MAX_PORT = 65535
# https://docs.aws.amazon.com/AmazonRDS/latest/APIReference/API_CreateDBInstance.html
DATABASE_NAME_PATTERN = re.compile(r"(?=.{1,63}$)[a-z](-?[a-z0-9])*")
MAX_DATABASE_NAME_LENGTH = 63
# https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/Concepts.DBInstanceClass.Types.html
DATABASE_CLASS_PATTERN = re.compile(
    r"db\.(?:t[2-4]g?|[cmr][3-9][a-z]{0,3}|x[12][a-z]{0,4}|z1d)\.(?:micro|small|medium|large|(?:[1-9][0-9]?)?xlarge)"
)
MIN_DATABASE_STORAGE_GIB = 20  # gp3
MAX_DATABASE_STORAGE_GIB = 65536
# https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/USER_VPC.WorkingWithRDSInstanceinaVPC.html
MIN_DATABASE_ZONES = 2

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterAccountingDatabase.html
SCHEMA_NAME_PATTERN = re.compile(r"[a-zA-Z0-9$_]{1,64}")

# ---- operations ---------------------------------------------------------------------------------

# Seven days of hourly periods: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html
MAX_IDLE_NOTICE_HOURS = 168
# https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
LOG_RETENTIONS_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545),
    *(731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
# https://docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html
MAX_SCHEDULE_NAME_LENGTH = 64
# A schedule's name ends in the API call that it makes.
MAX_LOG_RETENTION_NAME_LENGTH = MAX_SCHEDULE_NAME_LENGTH - len("-putRetentionPolicy")
# https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutRule.html
MAX_RULE_NAME_LENGTH = 64
# A topic's name may be longer, but those of the rules begin with it and end in a word for the event.
# https://docs.aws.amazon.com/sns/latest/api/API_CreateTopic.html and API_Subscribe.html
MAX_NOTICES_NAME_LENGTH = MAX_RULE_NAME_LENGTH - len("-health")
NOTICES_NAME_PATTERN = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NOTICES_NAME_LENGTH}}}")
TOPIC_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}")
# An address without quotes or comments: https://datatracker.ietf.org/doc/html/rfc5322#section-3.4.1
EMAIL_PATTERN = re.compile(
    r"(?!.*\.\.)(?!\.)[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}(?<!\.)"
    r"@([A-Za-z0-9](-*[A-Za-z0-9])*\.)+[A-Za-z][A-Za-z0-9-]+"
)
# https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_budgets_Budget.html
BUDGET_NAME_PATTERN = re.compile(r"[^:\\]{1,100}")
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_CreateDocument.html
DOCUMENT_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_.-]{3,128}")
# https://docs.aws.amazon.com/systems-manager/latest/userguide/session-preferences-timeout.html
MIN_IDLE_MINUTES = 1
MAX_IDLE_MINUTES = 60
# https://docs.aws.amazon.com/prometheus/latest/APIReference/API_WorkspaceDescription.html
WORKSPACE_ARN_PATTERN = re.compile(
    r"arn:aws[a-z-]*:aps:(?P<region>[a-z0-9-]+):[0-9]{12}:workspace/(?P<id>[A-Za-z0-9_-]+)"
)
REMOTE_WRITE_URL_PATTERN = re.compile(
    r"https://aps-workspaces(-fips)?\.(?P<region>[a-z0-9-]+)\.(amazonaws\.(com|com\.cn|eu)|api\.aws)"
    r"/workspaces/(?P<workspace>[A-Za-z0-9_-]+)/api/v1/remote_write"
)
