"""IAM actions with which Terraform creates, reads, updates and deletes each resource type.

A test compares them with the calls that the real provider makes. The cluster's are those of its CloudFormation schema:
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sagemaker-cluster.html
"""

from __future__ import annotations

from collections.abc import Iterable

from podwright.resource_types import CLUSTER

TAGS = "ec2:CreateTags ec2:DeleteTags"
GROUP_RULES = f"ec2:DescribeSecurityGroupRules ec2:ModifySecurityGroupRules ec2:DescribeSecurityGroups {TAGS}"
FILE_SYSTEM = (
    "fsx:CreateFileSystem fsx:CreateFileSystemFromBackup fsx:DeleteFileSystem fsx:DescribeFileSystems "
    "fsx:UpdateFileSystem fsx:CreateBackup "
    "fsx:ListTagsForResource fsx:TagResource fsx:UntagResource ec2:DescribeNetworkInterfaces ec2:DescribeSubnets "
    # FSx asks EC2 for these with the caller's rights (AmazonFSxFullAccess, DescribeEC2VpcResources).
    "ec2:DescribeSecurityGroups ec2:GetSecurityGroupsForVpc ec2:DescribeVpcs ec2:DescribeRouteTables"
)
ROUTES = "ec2:DescribeRouteTables"
EVENTS_TAGS = "events:ListTagsForResource events:TagResource events:UntagResource"

# Needed whatever the stacks create: the provider's own questions, and podwright's while it follows and cleans up.
ALWAYS = (
    "sts:GetCallerIdentity tag:GetResources logs:FilterLogEvents logs:DescribeLogGroups sagemaker:DescribeCluster "
    "ec2:DescribeAccountAttributes ec2:DescribeVpcs ec2:DescribeNetworkInterfaces ec2:DescribeVolumes "
    "ec2:DescribeSnapshots ec2:DescribeAddresses ec2:DescribeNatGateways ec2:DescribeVpcEndpoints "
    "fsx:DescribeFileSystems fsx:DescribeBackups rds:DescribeDBInstances rds:DescribeDBSnapshots "
    "secretsmanager:ListSecrets kms:DescribeKey"
)

ACTIONS = {
    "aws_budgets_budget": "budgets:ViewBudget budgets:ModifyBudget budgets:ListTagsForResource budgets:TagResource "
    "budgets:UntagResource",
    CLUSTER: "cloudformation:DescribeType cloudformation:CreateResource cloudformation:GetResource "
    "cloudformation:UpdateResource cloudformation:DeleteResource cloudformation:GetResourceRequestStatus "
    "cloudformation:CancelResourceRequest sagemaker:CreateCluster sagemaker:DescribeCluster sagemaker:UpdateCluster "
    "sagemaker:UpdateClusterSoftware sagemaker:DeleteCluster sagemaker:ListClusters sagemaker:ListTags "
    "sagemaker:AddTags sagemaker:DeleteTags sagemaker:BatchAddClusterNodes sagemaker:BatchDeleteClusterNodes "
    "iam:CreateServiceLinkedRole ec2:DescribeImages ec2:DescribeSnapshots ec2:ModifyImageAttribute "
    "ec2:ModifySnapshotAttribute kms:DescribeKey kms:CreateGrant",
    "aws_cloudwatch_dashboard": "cloudwatch:GetDashboard cloudwatch:PutDashboard cloudwatch:DeleteDashboards",
    "aws_cloudwatch_event_rule": "events:PutRule events:DescribeRule events:DeleteRule events:EnableRule "
    f"events:DisableRule {EVENTS_TAGS}",
    "aws_cloudwatch_event_target": "events:PutTargets events:ListTargetsByRule events:RemoveTargets",
    "aws_cloudwatch_log_group": "logs:CreateLogGroup logs:DeleteLogGroup logs:DescribeLogGroups "
    "logs:PutRetentionPolicy logs:DeleteRetentionPolicy logs:AssociateKmsKey logs:DisassociateKmsKey "
    "logs:ListTagsForResource logs:TagResource logs:UntagResource",
    "aws_cloudwatch_metric_alarm": "cloudwatch:PutMetricAlarm cloudwatch:DescribeAlarms cloudwatch:DeleteAlarms "
    "cloudwatch:ListTagsForResource cloudwatch:TagResource cloudwatch:UntagResource",
    "aws_db_instance": "rds:CreateDBInstance rds:DeleteDBInstance rds:DescribeDBInstances rds:ModifyDBInstance "
    "rds:RebootDBInstance rds:ListTagsForResource rds:AddTagsToResource rds:RemoveTagsFromResource "
    "iam:CreateServiceLinkedRole kms:CreateGrant kms:DescribeKey secretsmanager:CreateSecret "
    "secretsmanager:TagResource",
    "aws_db_parameter_group": "rds:CreateDBParameterGroup rds:DeleteDBParameterGroup rds:DescribeDBParameterGroups "
    "rds:DescribeDBParameters rds:ModifyDBParameterGroup rds:ResetDBParameterGroup rds:ListTagsForResource "
    "rds:AddTagsToResource rds:RemoveTagsFromResource",
    "aws_db_subnet_group": "rds:CreateDBSubnetGroup rds:DeleteDBSubnetGroup rds:DescribeDBSubnetGroups "
    "rds:ModifyDBSubnetGroup rds:ListTagsForResource rds:AddTagsToResource rds:RemoveTagsFromResource",
    "aws_default_security_group": "ec2:DescribeSecurityGroups ec2:DescribeSecurityGroupRules "
    "ec2:RevokeSecurityGroupIngress ec2:RevokeSecurityGroupEgress ec2:AuthorizeSecurityGroupIngress "
    f"ec2:AuthorizeSecurityGroupEgress {TAGS}",
    "aws_eip": "ec2:AllocateAddress ec2:ReleaseAddress ec2:DisassociateAddress ec2:DescribeAddresses "
    f"ec2:DescribeAddressesAttribute {TAGS}",
    "aws_flow_log": f"ec2:CreateFlowLogs ec2:DeleteFlowLogs ec2:DescribeFlowLogs logs:CreateLogDelivery "
    f"logs:DeleteLogDelivery {TAGS}",
    "aws_fsx_data_repository_association": "fsx:CreateDataRepositoryAssociation fsx:DeleteDataRepositoryAssociation "
    "fsx:DescribeDataRepositoryAssociations fsx:UpdateDataRepositoryAssociation fsx:ListTagsForResource "
    "fsx:TagResource fsx:UntagResource iam:CreateServiceLinkedRole iam:AttachRolePolicy iam:PutRolePolicy",
    "aws_fsx_lustre_file_system": f"{FILE_SYSTEM} iam:CreateServiceLinkedRole kms:CreateGrant kms:DescribeKey",
    "aws_fsx_openzfs_file_system": f"{FILE_SYSTEM} fsx:DescribeVolumes fsx:UpdateVolume ec2:DescribeRouteTables "
    f"iam:CreateServiceLinkedRole kms:CreateGrant kms:DescribeKey {TAGS}",
    "aws_iam_role": "iam:CreateRole iam:DeleteRole iam:GetRole iam:UpdateRole iam:UpdateAssumeRolePolicy "
    "iam:UpdateRoleDescription iam:ListRolePolicies iam:ListAttachedRolePolicies iam:ListInstanceProfilesForRole "
    "iam:PutRolePermissionsBoundary iam:DeleteRolePermissionsBoundary iam:TagRole iam:UntagRole iam:ListRoleTags",
    "aws_iam_role_policy": "iam:PutRolePolicy iam:GetRolePolicy iam:DeleteRolePolicy",
    "aws_iam_role_policy_attachment": "iam:AttachRolePolicy iam:DetachRolePolicy iam:ListAttachedRolePolicies",
    "aws_internet_gateway": "ec2:CreateInternetGateway ec2:DeleteInternetGateway ec2:AttachInternetGateway "
    f"ec2:DetachInternetGateway ec2:DescribeInternetGateways {TAGS}",
    "aws_kms_alias": "kms:CreateAlias kms:DeleteAlias kms:UpdateAlias kms:ListAliases",
    "aws_kms_key": "kms:CreateKey kms:DescribeKey kms:GetKeyPolicy kms:PutKeyPolicy kms:GetKeyRotationStatus "
    "kms:EnableKeyRotation kms:DisableKeyRotation kms:EnableKey kms:DisableKey kms:UpdateKeyDescription "
    "kms:ScheduleKeyDeletion kms:ListResourceTags kms:TagResource kms:UntagResource",
    "aws_nat_gateway": f"ec2:CreateNatGateway ec2:DeleteNatGateway ec2:DescribeNatGateways {TAGS}",
    "aws_prometheus_workspace": "aps:CreateWorkspace aps:DeleteWorkspace aps:DescribeWorkspace "
    "aps:DescribeLoggingConfiguration aps:UpdateWorkspaceAlias aps:ListTagsForResource aps:TagResource "
    "aps:UntagResource kms:CreateGrant kms:DescribeKey",
    "aws_route": f"ec2:CreateRoute ec2:DeleteRoute ec2:ReplaceRoute {ROUTES}",
    "aws_route_table": f"ec2:CreateRouteTable ec2:DeleteRouteTable {ROUTES} {TAGS}",
    "aws_route_table_association": "ec2:AssociateRouteTable ec2:DisassociateRouteTable "
    f"ec2:ReplaceRouteTableAssociation {ROUTES}",
    "aws_s3_bucket": "s3:CreateBucket s3:DeleteBucket s3:ListBucket s3:ListBucketVersions s3:GetBucketLocation "
    "s3:GetBucketTagging s3:PutBucketTagging s3:GetBucketAcl s3:GetBucketCORS s3:GetBucketWebsite "
    "s3:GetBucketVersioning s3:GetBucketLogging s3:GetBucketRequestPayment s3:GetBucketObjectLockConfiguration "
    "s3:GetBucketPolicy s3:GetAccelerateConfiguration s3:GetLifecycleConfiguration s3:GetReplicationConfiguration "
    "s3:GetEncryptionConfiguration s3:DeleteObject s3:DeleteObjectVersion",
    "aws_s3_bucket_lifecycle_configuration": "s3:GetLifecycleConfiguration s3:PutLifecycleConfiguration",
    "aws_s3_bucket_logging": "s3:GetBucketLogging s3:PutBucketLogging",
    "aws_s3_bucket_policy": "s3:GetBucketPolicy s3:PutBucketPolicy s3:DeleteBucketPolicy",
    "aws_s3_bucket_public_access_block": "s3:GetBucketPublicAccessBlock s3:PutBucketPublicAccessBlock",
    "aws_s3_bucket_server_side_encryption_configuration": "s3:GetEncryptionConfiguration s3:PutEncryptionConfiguration",
    "aws_s3_bucket_versioning": "s3:GetBucketVersioning s3:PutBucketVersioning",
    "aws_s3_object": "s3:PutObject s3:GetObject s3:GetObjectVersion s3:DeleteObject s3:DeleteObjectVersion "
    "s3:GetObjectTagging s3:PutObjectTagging s3:ListBucket s3:ListBucketVersions kms:Decrypt kms:GenerateDataKey",
    "aws_scheduler_schedule": "scheduler:CreateSchedule scheduler:DeleteSchedule scheduler:GetSchedule "
    "scheduler:UpdateSchedule",
    "aws_security_group": "ec2:CreateSecurityGroup ec2:DeleteSecurityGroup ec2:DescribeSecurityGroups "
    "ec2:DescribeSecurityGroupRules ec2:DescribeNetworkInterfaces ec2:RevokeSecurityGroupEgress "
    f"ec2:RevokeSecurityGroupIngress ec2:DescribeSecurityGroupReferences {TAGS}",
    "aws_sns_topic": "sns:CreateTopic sns:DeleteTopic sns:GetTopicAttributes sns:SetTopicAttributes "
    "sns:ListTagsForResource sns:TagResource sns:UntagResource",
    "aws_sns_topic_policy": "sns:GetTopicAttributes sns:SetTopicAttributes",
    "aws_sns_topic_subscription": "sns:Subscribe sns:Unsubscribe sns:GetSubscriptionAttributes "
    "sns:SetSubscriptionAttributes sns:ListSubscriptionsByTopic",
    "aws_ssm_document": "ssm:CreateDocument ssm:DeleteDocument ssm:DescribeDocument ssm:GetDocument "
    "ssm:UpdateDocument ssm:UpdateDocumentDefaultVersion ssm:DescribeDocumentPermission ssm:AddTagsToResource "
    "ssm:ListTagsForResource ssm:RemoveTagsFromResource",
    "aws_subnet": "ec2:CreateSubnet ec2:DeleteSubnet ec2:DescribeSubnets ec2:ModifySubnetAttribute "
    f"ec2:DescribeNetworkInterfaces ec2:DescribeAvailabilityZones {TAGS}",
    "aws_vpc": "ec2:CreateVpc ec2:DeleteVpc ec2:DescribeVpcs ec2:DescribeVpcAttribute ec2:ModifyVpcAttribute "
    f"ec2:DescribeNetworkAcls ec2:DescribeRouteTables ec2:DescribeSecurityGroups {TAGS}",
    "aws_vpc_endpoint": "ec2:CreateVpcEndpoint ec2:DeleteVpcEndpoints ec2:DescribeVpcEndpoints "
    f"ec2:ModifyVpcEndpoint ec2:DescribePrefixLists ec2:DescribeVpcEndpointServices {TAGS}",
    "aws_vpc_ipv4_cidr_block_association": "ec2:AssociateVpcCidrBlock ec2:DisassociateVpcCidrBlock ec2:DescribeVpcs",
    "aws_vpc_security_group_egress_rule": "ec2:AuthorizeSecurityGroupEgress ec2:RevokeSecurityGroupEgress "
    f"{GROUP_RULES}",
    "aws_vpc_security_group_ingress_rule": "ec2:AuthorizeSecurityGroupIngress ec2:RevokeSecurityGroupIngress "
    f"{GROUP_RULES}",
}


def actions(types: Iterable[str]) -> list[str]:
    """Return the actions for resource types, sorted, each once; a type without a row is left out."""
    return sorted({action for words in (ALWAYS, *map(ACTIONS.get, types)) if words for action in words.split()})
