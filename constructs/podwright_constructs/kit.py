"""The chosen kit under one name: everything here imports its classes from this module."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from podwright_constructs.kit_choice import chosen

if TYPE_CHECKING:  # CDK Terrain's classes have the same signatures
    from cdktf import *  # noqa: F403
else:
    sys.modules[__name__] = importlib.import_module(chosen().name)
