"""Read an AWS account through boto3: the cluster, its file systems, logs and costs."""
