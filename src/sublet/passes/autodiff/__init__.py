"""Reverse-mode differentiation. The pass is `gradients`."""

from sublet.passes.autodiff.activity import active_values, is_differentiable
from sublet.passes.autodiff.checkpoint_schedules import PLAIN, SQRT, TREE, Checkpoints
from sublet.passes.autodiff.reverse_mode import backward, gradients, with_zeros
from sublet.passes.autodiff.trip_count import trip_count_of

__all__ = [
    "PLAIN",
    "SQRT",
    "TREE",
    "Checkpoints",
    "active_values",
    "backward",
    "gradients",
    "is_differentiable",
    "trip_count_of",
    "with_zeros",
]
