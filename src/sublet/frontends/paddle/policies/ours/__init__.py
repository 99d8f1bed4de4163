"""Sublet's own policy: the ordinary executor runs the program it gives, and holds fewer bytes.

Six passes, each from a program to a program that computes the same bits: the optimiser runs early, gradient blocks ask
for shapes elsewhere, loops do not copy what they only read, outputs take over the memory of inputs that die, what dies
within a trip of a loop lies outside of it, what follows an update waits for it and for the end of its gradient.
Elsewhere names of dead values are not handed on: the executor frees a tensor with its last mention, so a name used
again later would hold the bytes in between.
"""

from sublet.frontends.paddle.policies.ours.policy import PASSES, ours

__all__ = ["PASSES", "ours"]
