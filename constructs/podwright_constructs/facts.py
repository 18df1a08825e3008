"""AWS's ports and limits, each with the page that says so. Standard library only."""

from __future__ import annotations

import re
from typing import NamedTuple


class PortRange(NamedTuple):
    """An inclusive range of TCP ports."""

    first: int
    last: int


# Between Lustre clients and servers. AWS's newer text says 1021-1023; older clients use the rest of the range.
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE_PORTS = (PortRange(988, 988), PortRange(1018, 1023))

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html
CLUSTER_NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
CLUSTER_NAME_MAX_LENGTH = 63
INSTANCE_GROUPS_MAX = 100
SUBNETS_MAX = 16
CLUSTER_TAGS_MAX = 50

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
INSTANCE_GROUP_NAME_PATTERN = CLUSTER_NAME_PATTERN
INSTANCE_GROUP_NAME_MAX_LENGTH = 63
INSTANCE_COUNT_MAX = 6758

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterEbsVolumeConfig.html
VOLUME_GIB_MIN = 1
VOLUME_GIB_MAX = 16384

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterSlurmConfig.html
PARTITION_NAME_PATTERN = CLUSTER_NAME_PATTERN

# The API refuses scripts that lie elsewhere, and AWS's managed policy reads no other bucket.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
BUCKET_NAME_START = "sagemaker-"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Terraform appends 26 digits to a prefix; a name holds 63 characters.
# https://registry.terraform.io/providers/hashicorp/aws/latest/docs/resources/s3_bucket
BUCKET_PREFIX_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]*")
BUCKET_PREFIX_MAX_LENGTH = 37

# Of PERSISTENT_2 on SSD. https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html
LUSTRE_CAPACITY_GIB_MIN = 1200
LUSTRE_CAPACITY_GIB_STEP = 2400
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
LUSTRE_THROUGHPUTS_MBPS_PER_TIB = (125, 250, 500, 1000)
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_LustreFileSystemConfiguration.html
LUSTRE_MOUNT_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,8}")
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
FSX_DNS_NAME_PATTERN = re.compile(r"(fs|fc)i?-[0-9a-f]{8,}\..{4,253}")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-sagemaker-cluster-clusterfsxlustreconfig.html
MOUNT_PATH_PATTERN = re.compile(r"/[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*")

# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html and subnet-sizing.html
CIDR_PREFIX_LENGTH_MIN = 16
CIDR_PREFIX_LENGTH_MAX = 28
# https://docs.aws.amazon.com/global-infrastructure/latest/regions/az-ids.html
AVAILABILITY_ZONE_ID_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-az[0-9]+")

# https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html
ROLE_NAME_PATTERN = re.compile(r"[\w+=,.@-]{1,64}")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
ROLE_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
