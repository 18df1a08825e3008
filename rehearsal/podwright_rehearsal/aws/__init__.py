"""The AWS stand-in: a process on this machine that answers AWS's HTTP APIs for one account in one region.

moto emulates EC2, S3, IAM, STS and the rest; this package adds what moto lacks: FSx, the Cloud Control API and
SageMaker's data plane for HyperPod clusters and training plans, and CloudFormation's DescribeType.

It imports only podwright's instance catalogue and the root of its errors. Its limits are a second, independent reading
of AWS's documentation: a limit that the product has wrong is refused here.
"""

from podwright_rehearsal.aws.stand_in import AwsStandIn, AwsStandInError

__all__ = ["AwsStandIn", "AwsStandInError"]
