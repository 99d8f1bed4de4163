"""Differentiation in reverse mode: `gradients` is the pass."""

from sublet.passes.autodiff.paths import differentiable, reached
from sublet.passes.autodiff.reverse import backward, gradients

__all__ = ["backward", "differentiable", "gradients", "reached"]
