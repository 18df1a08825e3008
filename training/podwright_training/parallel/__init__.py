"""How a model is divided among ranks, and how all of them compute its loss together."""

from podwright_training.parallel.gradients import squared_norm
from podwright_training.parallel.model import ParallelModel

__all__ = ["ParallelModel", "squared_norm"]
