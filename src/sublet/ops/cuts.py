"""A cut: a node that computes nothing, where a run may stop so that somebody looks at what is there."""

from __future__ import annotations

from sublet.ops.op import Op, register

CUT = "cut.here"
"""The op of such a node: what it reads is there when a run has come to it."""

register("cut", lambda name: Op(name, pure=False, outputs=(0, 0)))
