"""The training program as nodes get it: a wheel and its locked requirements, both under keys that carry their hash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from constructs import Construct

from podwright_bootstrap import contract
from podwright_common.checksum import sha256_of
from podwright_constructs.bucket import Bucket, upload
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.problems import Problem, refuse

PREFIX = "training"


class TrainingPayload(CheckedConstruct):
    """A wheel and a requirements file in a bucket; another content is another key.

    Attributes:
        contract: what ``provisioning_parameters.json`` says of it.
        ready: the objects.

    Raises:
        InvalidArgumentsError: a file does not exist; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, *, bucket: Bucket, wheel: Path, requirements: Path, prefix: str = PREFIX
    ) -> None:
        refuse(self, list(_problems(wheel=wheel, requirements=requirements)))
        super().__init__(scope, id_)
        wheel_key = f"{prefix}/{sha256_of(wheel)}/{wheel.name}"
        requirements_key = f"{prefix}/{sha256_of(requirements)}/{requirements.name}"
        self.contract = contract.TrainingPayload(
            wheel_s3_uri=f"s3://{bucket.name}/{wheel_key}",
            wheel_sha256=sha256_of(wheel),
            requirements_s3_uri=f"s3://{bucket.name}/{requirements_key}",
            requirements_sha256=sha256_of(requirements),
        )
        files = {"wheel": (wheel_key, wheel), "requirements": (requirements_key, requirements)}
        self.ready: Sequence[ITerraformDependable] = upload(self, files, bucket=bucket)


def _problems(*, wheel: Path, requirements: Path) -> Iterator[Problem]:
    if wheel.suffix != ".whl" or not wheel.is_file():
        yield Problem("missing", ("wheel",), wheel, "an existing file that ends in .whl")
    if not requirements.is_file():
        yield Problem("missing", ("requirements",), requirements, "an existing file of pinned requirements with hashes")
