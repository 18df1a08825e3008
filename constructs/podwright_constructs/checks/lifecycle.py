"""What HyperPod would refuse of the place of its scripts."""

from __future__ import annotations

import re

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem

_FILE = re.compile(r"\S{1,128}")


def existing_lifecycle_scripts(*, source_s3_uri: str, on_create: str) -> list[Problem]:
    """Problems of the place of scripts that lie in S3 already."""
    return [*_source(source_s3_uri), *_script("on_create", on_create)]


def init_script(*, source_s3_uri: str, on_init_complete: str) -> list[Problem]:
    """Problems of the place of a script that runs after HyperPod's own set-up."""
    return [*_source(source_s3_uri), *_script("on_init_complete", on_init_complete)]


def _source(source_s3_uri: str) -> list[Problem]:
    place = re.compile(rf"s3://{facts.BUCKET_NAME_PREFIX}[^/]+(/.*)?")
    allowed = f"an address that begins with s3://{facts.BUCKET_NAME_PREFIX}"
    return matches("source_s3_uri", source_s3_uri, place, allowed)


def _script(argument: str, name: str) -> list[Problem]:
    return matches(argument, name, _FILE, "the name of a file below source_s3_uri")
