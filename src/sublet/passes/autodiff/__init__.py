"""Reverse-mode differentiation. The pass is `gradients`."""

from sublet.passes.autodiff.paths import differentiable, reached
from sublet.passes.autodiff.reverse import backward, gradients, with_zeros
from sublet.passes.autodiff.rounds import rounds_of
from sublet.passes.autodiff.schedules import PLAIN, SQRT, TREE, Checkpoints

__all__ = [
    "PLAIN",
    "SQRT",
    "TREE",
    "Checkpoints",
    "backward",
    "differentiable",
    "gradients",
    "reached",
    "rounds_of",
    "with_zeros",
]
