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

# Of clusters, instance groups and partitions alike.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html
CLUSTER_NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
MAX_CLUSTER_NAME_LENGTH = 63
MAX_INSTANCE_GROUPS = 100
MAX_SUBNETS = 16
MAX_CLUSTER_TAGS = 50

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
MIN_INSTANCE_COUNT = 0
MAX_INSTANCE_COUNT = 6758
MIN_THREADS_PER_CORE = 1
MAX_THREADS_PER_CORE = 2

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterEbsVolumeConfig.html
MIN_VOLUME_GIB = 1
MAX_VOLUME_GIB = 16384

# The API refuses scripts that lie elsewhere, and AWS's managed policy reads no other bucket.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
BUCKET_NAME_PREFIX = "sagemaker-"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Terraform appends 26 digits to a prefix; a name holds 63 characters.
# https://github.com/hashicorp/terraform-provider-aws/blob/main/website/docs/r/s3_bucket.html.markdown
BUCKET_PREFIX_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]*")
MAX_BUCKET_PREFIX_LENGTH = 37

# Of PERSISTENT_2 on SSD. https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html
MIN_LUSTRE_CAPACITY_GIB = 1200
LUSTRE_CAPACITY_STEP_GIB = 2400
LUSTRE_CAPACITY_TEXT = f"{MIN_LUSTRE_CAPACITY_GIB} or a multiple of {LUSTRE_CAPACITY_STEP_GIB}"
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
LUSTRE_THROUGHPUTS = (125, 250, 500, 1000)  # MB/s for each TiB
LUSTRE_THROUGHPUT_TEXT = "{}, {}, {} or {}".format(*LUSTRE_THROUGHPUTS)
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_LustreFileSystemConfiguration.html
LUSTRE_MOUNT_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,8}")
# https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
FSX_DNS_NAME_PATTERN = re.compile(r"(fs|fc)i?-[0-9a-f]{8,}\..{4,253}")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-sagemaker-cluster-clusterfsxlustreconfig.html
MOUNT_PATH_PATTERN = re.compile(r"/[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*")

# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html and subnet-sizing.html
MIN_CIDR_PREFIX_LENGTH = 16
MAX_CIDR_PREFIX_LENGTH = 28
RESERVED_ADDRESSES_PER_SUBNET = 5
VPC_PREFIX_TEXT = f"/{MIN_CIDR_PREFIX_LENGTH} to /{MAX_CIDR_PREFIX_LENGTH}"
# https://docs.aws.amazon.com/global-infrastructure/latest/regions/az-ids.html
AVAILABILITY_ZONE_ID_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-az[0-9]+")

# https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html
MAX_ROLE_NAME_LENGTH = 64
ROLE_NAME_PATTERN = re.compile(rf"[\w+=,.@-]{{1,{MAX_ROLE_NAME_LENGTH}}}")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
ROLE_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
