"""In-place operands of TensorFlow Lite Micro's kernels.

`facts.json` holds measurements: kernels were run in place (`tests/frontends/tflite/find_facts.py`). A row names the
element types, the position of the operand, and the shapes of the operands. Combinations without a row are not in place.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.op import Share

FACTS = Path(__file__).with_name("facts.json")
WITH_UNRELATED_OPERANDS = frozenset(
    {
        *("BROADCAST_TO", "CUMSUM", "DYNAMIC_UPDATE_SLICE", "PAD", "PADV2", "MIRROR_PAD", "RESIZE_BILINEAR"),
        *("RESIZE_NEAREST_NEIGHBOR", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND"),
        *("SVDF", "TRANSPOSE_CONV", "UNIDIRECTIONAL_SEQUENCE_LSTM"),
    }
)
"""Operators whose further operands are positions or weights, with shapes unrelated to the output."""

SAME, BROADCAST, TWICE = "same", "broadcast", "twice"


@cache
def kernel_facts() -> dict[str, Any]:
    """Return the content of `facts.json`."""
    content: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return content


@cache
def _measured_kinds(name: str) -> dict[tuple[str, int], frozenset[str]]:
    """Return the operand kinds measured as safe for an operator, by (element types, operand position)."""
    return {(types, position): frozenset(kinds) for types, position, *kinds in kernel_facts()["inplace"].get(name, ())}


def overwritable_operands(name: str, node: Node, outside: tuple[int, ...]) -> tuple[Share, ...]:
    """Return the operands whose bytes the first output may reuse."""
    result = node.outputs[0] if node.outputs else None
    if result is None or not isinstance(result.spec, TensorSpec) or result.spec.nbytes == 0:
        return ()
    shares = []
    rows = _measured_kinds(name)
    for position in sorted({position for _, position in rows}):
        operand = node.inputs[position] if position < len(node.inputs) else None
        if operand is None or position in outside or not isinstance(operand.spec, TensorSpec):
            continue
        if operand.spec.shape != result.spec.shape or operand.spec.nbytes != result.spec.nbytes:
            continue
        first, last = operand.spec.dtype.text, result.spec.dtype.text
        known = rows.get((first if first == last else f"{first}>{last}", position))
        if known and _operand_kind(name, node, operand, result.spec) in known:
            shares.append(Share(0, position))
    return tuple(shares)


def _operand_kind(name: str, node: Node, operand: Value, result: TensorSpec) -> str:
    """Return the kind of the operands' shapes as in `facts.json`; "" for an unmeasured combination."""
    if node.inputs.count(operand) > 1:
        return TWICE if node.inputs == (operand, operand) else ""
    if name in WITH_UNRELATED_OPERANDS:
        return SAME
    shapes = [value.spec.shape for value in node.inputs if value and isinstance(value.spec, TensorSpec)]
    return SAME if all(shape == result.shape for shape in shapes) else BROADCAST
