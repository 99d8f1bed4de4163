"""Matching of the present step of a call with the next steps of recorded calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sublet.dynamic.call_trie import NumberOperand, TrieNode
from sublet.dynamic.tensor import EagerTensor, Parameter


def match_latest(call: Any, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> TrieNode | None:
    """Return the next step of the most recent call if the command matches without conversions; None otherwise.

    The fast path of `match_command`: no number operand differs from the recorded number, and no number operand is zero,
    as 0.0 and -0.0 compare equal.
    """
    child: TrieNode = call.moment.children[0]
    step: Any = child.step
    operands = step.operands
    if step.op != op or len(inputs) != len(operands) or step.recording is not call.eager.recording:
        return None
    if (attrs or step.attrs) and not step.matches_attributes(attrs):
        return None
    for entry, given in zip(operands, inputs):  # noqa: B905
        what = entry.__class__
        if what is int:
            if not isinstance(given, EagerTensor) or given._slot != entry or given._call is not call:
                return None
        elif what is NumberOperand:
            if entry.varies or given.__class__ is not entry.type or given != entry.value or not given:
                return None
        elif not entry.fits(given, call, inputs):
            return None
    return child


def match_command(call: Any, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> TrieNode | None:
    """Return the next step of a recorded call equal to the command; None without a match."""
    moment, recording = call.moment, call.eager.recording
    for child in moment.children:
        step: Any = child.step
        if (
            step.op == op
            and step.recording is recording
            and step.matches_attributes(attrs)
            and step.matches_operands(inputs, call)
        ):
            found: TrieNode = child
            return found
    return None


def match_other_step(call: Any, what: str, inputs: Sequence[Any], target: Parameter | None = None) -> TrieNode | None:
    """Return the next step of a recorded call equal to a step of kind `what`; None without a match."""
    for child in call.moment.children:
        step: Any = child.step
        same = step.what is what and step.target is target and step.recording is call.eager.recording
        if same and step.matches_operands(inputs, call):
            found: TrieNode = child
            return found
    return None
