"""Divide a model among ranks, and compute its loss across all of them.

No other package knows how a model is divided; ``divide.py`` has the order and its reasons. Every rank returns the loss
of its own tokens, so losses and gradients of all ranks add up in every layout. Names, shapes and initial values of
parameters do not depend on the layout, so a checkpoint can be resumed in another one.
"""

from podwright_training.parallel.gradients import squared_norm
from podwright_training.parallel.meshes import Meshes
from podwright_training.parallel.model import ParallelModel

__all__ = ["Meshes", "ParallelModel", "squared_norm"]
