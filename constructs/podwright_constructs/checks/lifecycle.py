"""Check where lifecycle scripts are in S3 against HyperPod's limits."""

from __future__ import annotations

import re
from dataclasses import replace

from podwright_constructs import facts
from podwright_constructs.checks.words import bucket_name_problems, matches
from podwright_constructs.problems import Problem

# At most 1024 characters: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
_FOLDER = re.compile(rf"(?=.{{,1024}}$)s3://({facts.BUCKET_NAME_PREFIX}[^/]+)(/(?!\.{{1,2}}(/|$))[^/\x00-\x1f]+)*/?")
_FILE = re.compile(r"(?!/|(.*/)?\.\.(/|$))\S{1,128}")


def existing_lifecycle_scripts(*, source_s3_uri: str, on_create: str) -> list[Problem]:
    """Check the location of scripts that are in S3 already."""
    return [*_source(source_s3_uri), *_script("on_create", on_create)]


def init_script(*, source_s3_uri: str, on_init_complete: str) -> list[Problem]:
    """Check the location of a script that runs after HyperPod's own set-up."""
    return [*_source(source_s3_uri), *_script("on_init_complete", on_init_complete)]


def _source(source_s3_uri: str) -> list[Problem]:
    need = f"a URI of a folder that begins with s3://{facts.BUCKET_NAME_PREFIX}"
    match = _FOLDER.fullmatch(source_s3_uri)
    if match is None:
        return matches("source_s3_uri", source_s3_uri, _FOLDER, need)
    return [replace(problem, value=source_s3_uri) for problem in bucket_name_problems("source_s3_uri", match[1], need)]


def _script(argument: str, name: str) -> list[Problem]:
    return matches(argument, name, _FILE, "the name of a file below source_s3_uri")
