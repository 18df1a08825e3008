"""The stand-in's only account."""

ACCOUNT_ID = "123456789012"
