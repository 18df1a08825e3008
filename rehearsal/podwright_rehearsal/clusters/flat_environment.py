"""Build the training environment of flat hosts: ``python -m …flat_environment PARAMETERS TARGET``.

Wheel and lock come from the bucket and are checked and installed by the bootstrap's own code. boto3 fetches them, for a
machine without hosts of their own need not have the AWS CLI; it finds the account as the CLI would.
"""

from __future__ import annotations

import sys
from pathlib import Path

import boto3

from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.software import uv
from podwright_bootstrap.steps import environment


def main() -> int:
    """Build the environment; return 1 if that fails."""
    parameters, target = ProvisioningParameters.from_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    if parameters.training is None:
        print("the configuration says training.source: none, so there is nothing to train with")
        return 1
    try:
        archive = uv.find_wheel()
        if archive is None:
            raise BootstrapError("no folder of PIP_FIND_LINKS has uv's wheel", hint="run: make setup")  # noqa: TRY301 -- caught with the others
        environment.build(target, parameters.training, uv=archive, copy=_copy, unprivileged_builder=False)
    except BootstrapError as error:
        print(f"{error}\n{error.hint}".rstrip())
        return 1
    return 0


def _copy(uri: str, path: Path) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    boto3.client("s3").download_file(bucket, key, str(path))


if __name__ == "__main__":
    sys.exit(main())
