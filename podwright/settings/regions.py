"""AWS regions and the beginning of their Availability Zone ids.

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


def looks_like_region(text: str) -> bool:
    """Return whether the text has the form of a region name, known or not."""
    return _REGION.fullmatch(text) is not None


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
