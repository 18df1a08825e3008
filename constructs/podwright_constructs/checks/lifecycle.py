"""Check where lifecycle scripts are in S3 against HyperPod's limits."""

from __future__ import annotations

import re

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem

_FILE = re.compile(r"(?!/|(.*/)?\.\.(/|$))\S{1,128}")


def existing_lifecycle_scripts(*, source_s3_uri: str, on_create: str) -> list[Problem]:
    """Check the location of scripts that are in S3 already."""
    return [*_source(source_s3_uri), *_script("on_create", on_create)]


def init_script(*, source_s3_uri: str, on_init_complete: str) -> list[Problem]:
    """Check the location of a script that runs after HyperPod's own set-up."""
    return [*_source(source_s3_uri), *_script("on_init_complete", on_init_complete)]


def _source(source_s3_uri: str) -> list[Problem]:
    pattern = re.compile(rf"s3://{facts.BUCKET_NAME_PREFIX}[^/]+(/.*)?")
    need = f"a URI that begins with s3://{facts.BUCKET_NAME_PREFIX}"
    return matches("source_s3_uri", source_s3_uri, pattern, need)


def _script(argument: str, name: str) -> list[Problem]:
    return matches(argument, name, _FILE, "the name of a file below source_s3_uri")
