"""Operators as records of facts, in dialects."""

from sublet.ops.aten import COLLECTIVES, JOINED, PREFIX, aten, collective, joined
from sublet.ops.nn import nn_op
from sublet.ops.onnx import onnx_op
from sublet.ops.op import Op, Share, lookup, register, shared

register("onnx", onnx_op)
register("nn", nn_op)
register(PREFIX.rstrip("."), aten)
register(COLLECTIVES.rstrip("."), collective)
register(JOINED.rstrip("."), joined)

__all__ = ["Op", "Share", "lookup", "register", "shared"]
