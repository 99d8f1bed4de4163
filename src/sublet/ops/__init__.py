"""Operators as records of facts, in dialects."""

from sublet.ops.measured import dimensions_of, measured_axes, measured_dimensions
from sublet.ops.nn import nn_op
from sublet.ops.op import Op, Share, lookup, present_shares, register, slice_maps_of

register("nn", nn_op)

__all__ = [
    "Op",
    "Share",
    "dimensions_of",
    "lookup",
    "measured_axes",
    "measured_dimensions",
    "present_shares",
    "register",
    "slice_maps_of",
]
