"""Reverse-mode differentiation: `backward` says how, `gradients` is the pass."""

from sublet.passes.autodiff.backward import backward, gradients
from sublet.passes.autodiff.paths import differentiable, reached

__all__ = ["backward", "differentiable", "gradients", "reached"]
