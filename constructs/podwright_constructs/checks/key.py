"""Check the arguments of a key against KMS's limits."""

from __future__ import annotations

import re

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem


def encryption_key(*, alias: str) -> list[Problem]:
    """Check a new key; ``alias`` comes without the prefix ``alias/``."""
    # https://docs.aws.amazon.com/kms/latest/APIReference/API_CreateAlias.html
    pattern = re.compile(r"(?!aws/)[a-zA-Z0-9/_-]{1,250}")
    return matches("alias", alias, pattern, "up to 250 letters, digits, /, _ and -, not beginning with aws/")


def existing_key(*, arn: str) -> list[Problem]:
    """Check the ARN of an existing key."""
    need = "an ARN like arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    hint = "An alias can be moved to another key; a file system keeps the key it was created with."
    return matches("arn", arn, facts.KEY_ARN_PATTERN, need, hint if ":alias/" in arn else "")
