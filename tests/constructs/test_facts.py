"""Facts that quote a model of AWS's APIs are what botocore's copy of the model says."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_constructs import facts


@cache
def metadata(service: str, shape: str) -> dict[str, Any]:
    """Return the limits of a shape in a service's API model."""
    return dict(botocore.session.get_session().get_service_model(service).shape_for(shape).metadata)


@pytest.mark.parametrize(
    ("service", "shape", "limits"),
    [
        ("sagemaker", "ClusterAccountingDatabaseEndpoint", {"pattern": facts.ACCOUNTING_DATABASE_ENDPOINT_PATTERN}),
        ("sagemaker", "ClusterFsxMountPath", {"max": 1024}),
        ("sagemaker", "RoleArn", {"pattern": r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"}),
        ("fsx", "AutomaticBackupRetentionDays", {"max": facts.MAX_BACKUP_RETENTION_DAYS}),
        ("fsx", "PerUnitStorageThroughput", {"max": max(*facts.LUSTRE_EFA_CAPACITY_STEPS_GIB)}),
        ("fsx", "MetadataIops", {"min": min(facts.LUSTRE_METADATA_IOPS), "max": max(facts.LUSTRE_METADATA_IOPS)}),
        (
            "fsx",
            "ThroughputCapacityMbps",
            {
                "min": facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS,
                "max": facts.MAX_LUSTRE_TIERING_THROUGHPUT_MBPS,
            },
        ),
        ("fsx", "LustreFileSystemMountName", {"pattern": f"^({facts.LUSTRE_MOUNT_NAME_PATTERN.pattern})$"}),
        ("fsx", "BackupId", {"pattern": f"^({facts.BACKUP_ID_PATTERN.pattern})$"}),
        ("scheduler", "Name", {"max": facts.MAX_SCHEDULE_NAME_LENGTH}),
        ("events", "RuleName", {"max": facts.MAX_RULE_NAME_LENGTH}),
        ("iam", "roleNameType", {"max": facts.MAX_ROLE_NAME_LENGTH}),
        ("budgets", "BudgetName", {"max": 100}),
        ("cloudwatch", "AlarmName", {"max": 255}),
    ],
)
def test_limits_are_those_of_the_api(service: str, shape: str, limits: dict[str, Any]) -> None:
    """Lengths, bounds and patterns are AWS's."""
    texts = {key: getattr(limit, "pattern", limit) for key, limit in limits.items()}
    assert texts.items() <= metadata(service, shape).items()


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("OpenZFSDeploymentType", facts.OPENZFS_THROUGHPUTS_MBPS),
        ("OpenZFSDataCompressionType", facts.OPENZFS_COMPRESSIONS),
        ("DataCompressionType", facts.LUSTRE_COMPRESSIONS),
    ],
)
def test_choices_are_those_of_fsx(shape: str, values: Any) -> None:
    """The values that cluster.yaml accepts are exactly those that FSx accepts."""
    assert sorted(values) == sorted(botocore.session.get_session().get_service_model("fsx").shape_for(shape).enum)


@pytest.mark.parametrize(
    ("pattern", "service", "shape"),
    [
        (facts.CLUSTER_NAME_PATTERN, "sagemaker", "ClusterName"),
        (facts.BUDGET_NAME_PATTERN, "budgets", "BudgetName"),
        (facts.DOCUMENT_NAME_PATTERN, "ssm", "DocumentName"),
        (facts.FSX_DNS_NAME_PATTERN, "fsx", "DNSName"),
        (facts.ROLE_NAME_PATTERN, "iam", "roleNameType"),
        (facts.NOTICES_NAME_PATTERN, "events", "RuleName"),
        (facts.WORKSPACE_ARN_PATTERN, "amp", "WorkspaceArn"),
    ],
)
@given(data=st.data())
def test_our_patterns_accept_nothing_that_aws_refuses(
    pattern: Any, service: str, shape: str, data: st.DataObject
) -> None:
    """A pattern of ours that is narrower than AWS's accepts no value that AWS's refuses."""
    value = data.draw(st.from_regex(pattern, fullmatch=True))
    aws_pattern = str(metadata(service, shape).get("pattern", "")).replace("(?i)", "")
    assert re.search(aws_pattern, value, re.ASCII), value
