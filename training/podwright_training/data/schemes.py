"""Schemes of datasets that are not in a local folder."""

HUB = "hf://"
S3 = "s3://"
