"""Divide a model among ranks, and compute its loss across all of them."""

from podwright_training.parallel.gradients import squared_norm
from podwright_training.parallel.meshes import Meshes
from podwright_training.parallel.model import ParallelModel

__all__ = ["Meshes", "ParallelModel", "squared_norm"]
