"""List prices of AWS services in us-east-1, recalled in November 2026; the planner's data has those of instance types.

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
S3_USD_PER_GIB_MONTH = 0.023  # Standard
REGION_TRANSFER_USD_PER_GB = 0.02  # between most regions

LOGS_USD_PER_GIB_MONTH = 0.03
KEY_USD_PER_MONTH = 1.0
SECRET_USD_PER_MONTH = 0.40
