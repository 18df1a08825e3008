"""AWS regions, their Availability Zones, and the regions that have HyperPod.

https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html
"""

import re

# How many regions each part of the world has, in the partitions aws, aws-cn and aws-us-gov; AWS adds one or two a year.
_NUMBER_OF_REGIONS = {
    "af-south": 1,
    "ap-east": 2,
    "ap-northeast": 3,
    "ap-south": 2,
    "ap-southeast": 7,
    "ca-central": 1,
    "ca-west": 1,
    "cn-north": 1,
    "cn-northwest": 1,
    "eu-central": 2,
    "eu-north": 1,
    "eu-south": 2,
    "eu-west": 3,
    "il-central": 1,
    "me-central": 1,
    "me-south": 1,
    "mx-central": 1,
    "sa-east": 1,
    "us-east": 2,
    "us-gov-east": 1,
    "us-gov-west": 1,
    "us-west": 2,
}
REGIONS = tuple(f"{area}-{number + 1}" for area, count in _NUMBER_OF_REGIONS.items() for number in range(count))

# Where AWS::SageMaker::Cluster is a resource type, in the partition aws: CloudFormation's registry of each region, as
# cfn-lint 1.58.0 ships it. https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod.html
HYPERPOD_REGIONS_DATE = "November 2026"
HYPERPOD_REGIONS = (
    *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-south-2"),
    *("ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4"),
    *("ca-central-1", "eu-central-1", "eu-north-1", "eu-south-2", "eu-west-1", "eu-west-2"),
    *("sa-east-1", "us-east-1", "us-east-2", "us-west-1", "us-west-2"),
)

# Availability Zones that are not az1, az2 and az3.
_ZONES = {
    "ap-northeast-1": (1, 2, 3, 4),
    "ap-northeast-2": (1, 2, 3, 4),
    "ca-central-1": (1, 2, 4),
    "us-east-1": (1, 2, 3, 4, 5, 6),
    "us-west-1": (1, 2, 3),
    "us-west-2": (1, 2, 3, 4),
}

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}", re.ASCII)
_LETTERS = {
    "north": "n",
    "northeast": "ne",
    "east": "e",
    "southeast": "se",
    "south": "s",
    "west": "w",
    "northwest": "nw",
    "central": "c",
    "gov": "g",
}


CHINA = "aws-cn"
# By the beginning of a region's name; all others are in aws.
_PARTITIONS = {
    "cn-": CHINA,
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eu-isoe-": "aws-iso-e",
    "us-isof-": "aws-iso-f",
    "eusc-": "aws-eusc",
}


def looks_like_region(text: str) -> bool:
    """Return whether the text has the form of a region name, known or not."""
    return _REGION.fullmatch(text) is not None


def partition_of(region: str) -> str:
    """Return the partition of a region, as ARNs have it."""
    return next((partition for start, partition in _PARTITIONS.items() if region.startswith(start)), "aws")


def zone_ids(region: str) -> tuple[str, ...]:
    """Return the ids of a known region's Availability Zones."""
    prefix = zone_id_prefix(region)
    if region not in REGIONS or prefix is None:
        return ()
    return tuple(f"{prefix}-az{number}" for number in _ZONES.get(region, (1, 2, 3)))


def zone_id_prefix(region: str) -> str | None:
    """Return the prefix of a region's Availability Zone ids: ``usw2`` for us-west-2, ``usgw1`` for us-gov-west-1.

    None for names that the scheme is not known to cover (``us-iso-east-1``, a typing error).
    """
    if not looks_like_region(region):
        return None
    area, *words, number = region.split("-")
    if any(word not in _LETTERS for word in words):
        return None
    return area + "".join(_LETTERS[word] for word in words) + number
