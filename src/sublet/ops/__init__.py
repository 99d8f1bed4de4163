"""Operators as records of facts, in dialects."""

from sublet.ops.aten import COLLECTIVES, FUSED_PREFIX, PREFIX, aten_op, collective_op, fused_op
from sublet.ops.nn import nn_op
from sublet.ops.onnx import onnx_op
from sublet.ops.op import Op, Share, lookup, present_shares, register

register("onnx", onnx_op)
register("nn", nn_op)
register(PREFIX.rstrip("."), aten_op)
register(COLLECTIVES.rstrip("."), collective_op)
register(FUSED_PREFIX.rstrip("."), fused_op)

__all__ = ["Op", "Share", "lookup", "present_shares", "register"]
