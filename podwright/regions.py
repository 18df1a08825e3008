"""AWS regions and the beginning of their Availability Zone ids.

https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html
"""

from __future__ import annotations

import re

# The public regions of the partitions aws, aws-us-gov and aws-cn; AWS adds one or two a year, so an absent one is no error.
REGIONS = tuple(
    """
    af-south-1 ap-east-1 ap-east-2 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-south-2 ap-southeast-1
    ap-southeast-2 ap-southeast-3 ap-southeast-4 ap-southeast-5 ap-southeast-6 ap-southeast-7 ca-central-1 ca-west-1
    cn-north-1 cn-northwest-1 eu-central-1 eu-central-2 eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3
    il-central-1 me-central-1 me-south-1 mx-central-1 sa-east-1 us-east-1 us-east-2 us-gov-east-1 us-gov-west-1
    us-west-1 us-west-2
    """.split()
)

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
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
    """Whether the text has the form of a region name, known or not."""
    return _REGION.fullmatch(text) is not None


def zone_id_prefix(region: str) -> str | None:
    """What Availability Zone ids of a region start with: ``usw2`` for us-west-2, ``usgw1`` for us-gov-west-1.

    None for a name that the rule is not known to hold for: it is then not ours to judge.
    """
    area, *words, number = region.split("-")
    if not words or any(word not in _LETTERS for word in words):
        return None
    return area + "".join(_LETTERS[word] for word in words) + number
