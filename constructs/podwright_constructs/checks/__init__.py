"""Check arguments against AWS's limits: pure functions from arguments to problems. Standard library only.

Each construct calls the check of its own arguments; a program that reads arguments from a file calls the same one. A
value that holds a Terraform reference passes, because only Terraform knows it.

No limit is written twice: limits are in ``facts.py``, and messages take them from there.
"""

from __future__ import annotations

from podwright_constructs.checks.accounting import accounting_maria_db, existing_accounting_database, schema_name
from podwright_constructs.checks.bucket import (
    ON_DESTROY,
    bucket_options,
    existing_bucket,
    state_bucket,
    training_bucket,
)
from podwright_constructs.checks.file_system import file_system_id
from podwright_constructs.checks.hyperpod import (
    NODE_RECOVERIES,
    api_slurm,
    cluster,
    cluster_instance_groups,
    cluster_name_problems,
    cluster_provisioning,
    cluster_tags,
    controllers,
    extra_security_groups,
    instance_group_composition,
    types_with_bundle,
)
from podwright_constructs.checks.instance_group import instance_group
from podwright_constructs.checks.key import encryption_key, existing_key
from podwright_constructs.checks.lifecycle import existing_lifecycle_scripts, init_script
from podwright_constructs.checks.lustre import (
    existing_lustre,
    lustre_capacities,
    lustre_file_system,
    lustre_throughput,
)
from podwright_constructs.checks.network import (
    connection,
    connections,
    endpoint_services,
    existing_network,
    interface_endpoints,
    network_lookup,
    private_network,
    training_network,
)
from podwright_constructs.checks.openzfs import existing_openzfs, openzfs_file_system, openzfs_subnets
from podwright_constructs.checks.operations import (
    cluster_budget,
    cluster_log_group,
    cluster_notices,
    existing_prometheus,
    prometheus_workspace,
    session_document,
)
from podwright_constructs.checks.role import (
    assumed_role,
    condition_problems,
    execution_role,
    existing_role,
    granted_role,
    permissions_boundary,
    role_path,
    s3_access_problems,
    statement_problems,
    with_policy_variables,
)
from podwright_constructs.checks.words import mount_path_problems

__all__ = [
    "NODE_RECOVERIES",
    "ON_DESTROY",
    "accounting_maria_db",
    "api_slurm",
    "assumed_role",
    "bucket_options",
    "cluster",
    "cluster_budget",
    "cluster_instance_groups",
    "cluster_log_group",
    "cluster_name_problems",
    "cluster_notices",
    "cluster_provisioning",
    "cluster_tags",
    "condition_problems",
    "connection",
    "connections",
    "controllers",
    "encryption_key",
    "endpoint_services",
    "execution_role",
    "existing_accounting_database",
    "existing_bucket",
    "existing_key",
    "existing_lifecycle_scripts",
    "existing_lustre",
    "existing_network",
    "existing_openzfs",
    "existing_prometheus",
    "existing_role",
    "extra_security_groups",
    "file_system_id",
    "granted_role",
    "init_script",
    "instance_group",
    "instance_group_composition",
    "interface_endpoints",
    "lustre_capacities",
    "lustre_file_system",
    "lustre_throughput",
    "mount_path_problems",
    "network_lookup",
    "openzfs_file_system",
    "openzfs_subnets",
    "permissions_boundary",
    "private_network",
    "prometheus_workspace",
    "role_path",
    "s3_access_problems",
    "schema_name",
    "session_document",
    "state_bucket",
    "statement_problems",
    "training_bucket",
    "training_network",
    "types_with_bundle",
    "with_policy_variables",
]
