"""URL schemes of remote datasets."""

HUB = "hf://"
S3 = "s3://"
