"""Suspension points: nodes without computation, for stopping a run and inspecting the operands."""

from __future__ import annotations

from sublet.ops.op import Op, register

SUSPEND = "cut.here"
"""The op of a suspension point. When a run reaches the node, the operands are available."""

register("cut", lambda name: Op(name, pure=False, outputs=(0, 0)))
