"""Service Quotas for SageMaker's clusters: one quota for each instance type; increases are granted at once.

https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/Welcome.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright_constructs.catalog import cluster_instance_types
from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.aws_errors import AwsError

SERVICE = "sagemaker"
DEFAULT = 100.0  # AWS's own default is 0 for most types; a rehearsal needs no increase.


class Quotas:
    """The service. Not thread-safe: the server calls it under its lock."""

    def __init__(self, *, account: Account) -> None:
        self._account = account
        self._codes = {f"L-{number:08X}": name for number, name in enumerate(cluster_instance_types(), 1)}
        self._granted: dict[str, float] = {}
        self.operations = {
            "ListAWSDefaultServiceQuotas": self.list_defaults,
            "ListServiceQuotas": self.list_applied,
            "RequestServiceQuotaIncrease": self.increase,
        }

    def list_defaults(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListAWSDefaultServiceQuotas: all in one page."""
        _known_service(request)
        return {"Quotas": [self._quota(code, DEFAULT) for code in self._codes]}

    def list_applied(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListServiceQuotas: quotas that differ from the default."""
        _known_service(request)
        return {"Quotas": [self._quota(code, value) for code, value in self._granted.items()]}

    def increase(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """RequestServiceQuotaIncrease: always granted at once; AWS takes days."""
        _known_service(request)
        code = request["QuotaCode"]
        if code not in self._codes:
            raise AwsError("NoSuchResourceException", f"SageMaker has no quota {code}")
        self._granted[code] = float(request["DesiredValue"])
        return {"RequestedQuota": {**self._quota(code, self._granted[code]), "Status": "APPROVED"}}

    def _quota(self, code: str, value: float) -> dict[str, Any]:
        return {
            "ServiceCode": SERVICE,
            "QuotaCode": code,
            "QuotaName": f"{self._codes[code]} for cluster usage",
            "QuotaArn": self._account.arn("servicequotas", f"{SERVICE}/{code}"),
            "Value": value,
        }


def _known_service(request: Mapping[str, Any]) -> None:
    if request["ServiceCode"] != SERVICE:
        raise AwsError("NoSuchResourceException", f"The stand-in has quotas of {SERVICE}, not {request['ServiceCode']}")
