"""The only account of the AWS stand-in: its process has the number in its environment."""

import os

ACCOUNT_VARIABLE = "MOTO_ACCOUNT_ID"  # moto's own
DEFAULT_ACCOUNT_ID = "123456789012"
ACCOUNT_ID = os.environ.get(ACCOUNT_VARIABLE, DEFAULT_ACCOUNT_ID)
