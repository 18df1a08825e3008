"""The only account of the AWS stand-in."""

ACCOUNT_ID = "123456789012"
