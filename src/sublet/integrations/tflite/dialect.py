"""The `tflite` dialect: TensorFlow Lite operators, as "tflite.CONV_2D", with facts on TFLM's kernels.

No operator is pure: a pass that removed or repeated an operator would make another file. An order search may move the
built-in operators, whose variables are operands and outputs here. The node attribute "outside"
lists positions of operands outside the arena, which share no bytes: constants of the file, and variables. The attribute
"variables" lists the positions of variables changed by the kernel; the last outputs of the node are the changed
contents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.integrations.tflite.program import OPERATORS
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, Shares, block_share, concat_shares, keeps_element_order, no_shares

# In-place operands of TensorFlow Lite Micro's kernels.
#
# `facts.json` holds measurements: kernels were run in place (`tests/frontends/tflite/find_facts.py`). A row names the
# element types, the position of the operand, and the shapes of the operands. Combinations without a row are not in
# place.

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


# View outputs and in-place concat operands of TFLM's kernels: copying bytes onto themselves changes no byte.
#
# `facts.json` names the kernels measured to leave shared bytes unchanged.


def _byte_spec(values: Sequence[Value | None], position: int) -> TensorSpec | None:
    """Return the spec of a value with bytes and without sub-byte elements, None for the rest."""
    value = values[position] if position < len(values) else None
    spec = value.spec if value is not None else None
    return spec if isinstance(spec, TensorSpec) and spec.nbytes and spec.dtype.bits >= 8 else None


def _constant_elements(node: Node, position: int) -> tuple[int, ...] | None:
    """Return the elements of a constant operand, None if not constant."""
    value = node.inputs[position] if position < len(node.inputs) else None
    literal = None if value is None else value.literal
    return None if literal is None else tuple(int(element) for element in literal)


def _int_option(node: Node, name: str) -> int:
    """Return an integer attribute, 0 if absent."""
    value = node.attrs.get(name, 0)
    return value if isinstance(value, int) else 0


def _same_bytes_view(node: Node) -> tuple[Share, ...]:
    """Return the share of an output equal to the input's bytes: same element type and count."""
    source, result = _byte_spec(node.inputs, 0), _byte_spec(node.outputs, 0)
    same = source and result and source.dtype is result.dtype and source.size == result.size
    return (Share(0, 0),) if same else ()


def _slice_view(node: Node) -> tuple[Share, ...]:
    """Return the share of a contiguous slice at constant positions."""
    source, result, begin = _byte_spec(node.inputs, 0), _byte_spec(node.outputs, 0), _constant_elements(node, 1)
    if not source or not result or source.dtype is not result.dtype or begin is None or len(begin) != len(source.shape):
        return ()
    return block_share(0, source, result.shape, begin) if len(result.shape) == len(begin) else ()


def _transpose_view(node: Node) -> tuple[Share, ...]:
    """Return the share of a transposition with axes of extent 1 moved only."""
    source, result, order = _byte_spec(node.inputs, 0), _byte_spec(node.outputs, 0), _constant_elements(node, 1)
    if not source or not result or source.dtype is not result.dtype or order is None:
        return ()
    if sorted(order) != list(range(len(source.shape))) or result.shape != tuple(source.shape[axis] for axis in order):
        return ()
    return (Share(0, 0),) if keeps_element_order(source.shape, order) else ()


def _gather_view(node: Node) -> tuple[Share, ...]:
    """Return the share of a gather of consecutive constant positions, with only extents of 1 in front of the axis."""
    source, result, chosen = _byte_spec(node.inputs, 0), _byte_spec(node.outputs, 0), _constant_elements(node, 1)
    if not source or not result or source.dtype is not result.dtype or not chosen or _int_option(node, "batch_dims"):
        return ()
    axis, rank = _int_option(node, "axis"), len(source.shape)
    if not -rank <= axis < rank or chosen != tuple(range(chosen[0], chosen[0] + len(chosen))):
        return ()
    at, last = axis % rank, chosen[-1]
    shape = (*source.shape[:at], len(chosen), *source.shape[at + 1 :])
    if chosen[0] < 0 or last >= source.shape[at] or prod(shape) != result.size:
        return ()
    return block_share(0, source, shape, [chosen[0] if i == at else 0 for i in range(rank)])


def _strided_slice_view(node: Node) -> tuple[Share, ...]:
    """Return the share of a contiguous slice with steps of 1, without new axes."""
    source, result = _byte_spec(node.inputs, 0), _byte_spec(node.outputs, 0)
    begin, end, steps = (_constant_elements(node, position) for position in (1, 2, 3))
    if not source or not result or begin is None or end is None or steps is None:
        return ()
    rank = len(source.shape)
    plain = len(begin) == len(end) == len(steps) == rank and all(step == 1 for step in steps)
    if (
        not plain
        or _int_option(node, "ellipsis_mask")
        or _int_option(node, "new_mask")
        or source.dtype is not result.dtype
    ):
        return ()
    starts, shape = [], []
    for axis, extent in enumerate(source.shape):
        first = 0 if _int_option(node, "begin_mask") >> axis & 1 else _clamped_position(begin[axis], extent)
        last = extent if _int_option(node, "end_mask") >> axis & 1 else _clamped_position(end[axis], extent)
        if _int_option(node, "shrink_mask") >> axis & 1:
            first = begin[axis] + extent if begin[axis] < 0 else begin[axis]
            last = first + 1
        starts.append(first)
        shape.append(max(0, last - first))
    return block_share(0, source, shape, starts) if prod(shape) == result.size else ()


def _clamped_position(position: int, extent: int) -> int:
    """Return the position counted from the front, clamped to the axis."""
    return min(max(position + extent if position < 0 else position, 0), extent)


def _split_views(axis_at: int, operand: int) -> Callable[[Node], tuple[Share, ...]]:
    """Return a function for the shares of a split along a constant axis: the outputs lie in the input consecutively."""

    def shares(node: Node) -> tuple[Share, ...]:
        source, axis = _byte_spec(node.inputs, operand), _constant_elements(node, axis_at)
        if not source or not axis or not -len(source.shape) <= axis[0] < len(source.shape):
            return ()
        at = axis[0] % len(source.shape)
        begin, parts = [0] * len(source.shape), list[Share]()
        for i in range(len(node.outputs)):
            result = _byte_spec(node.outputs, i)
            if not result or result.dtype is not source.dtype or len(result.shape) != len(begin):
                return ()
            parts += block_share(i, source, result.shape, begin, operand)
            begin[at] += result.shape[at]
        return tuple(parts) if len(parts) == len(node.outputs) and begin[at] == source.shape[at] else ()

    return shares


def _unpack_views(node: Node) -> tuple[Share, ...]:
    """Return the shares of an unpack: the outputs are consecutive steps of the input."""
    source, axis = _byte_spec(node.inputs, 0), _int_option(node, "axis")
    if not source or not -len(source.shape) <= axis < len(source.shape):
        return ()
    at = axis % len(source.shape)
    step = [*source.shape[:at], 1, *source.shape[at + 1 :]]
    shares: list[Share] = []
    for i in range(len(node.outputs)):
        result = _byte_spec(node.outputs, i)
        if not result or result.dtype is not source.dtype or result.size != prod(step):
            return ()
        shares += block_share(i, source, step, [i if axis == at else 0 for axis in range(len(step))])
    return tuple(shares) if len(shares) == len(node.outputs) == source.shape[at] else ()


def _concat_parts(node: Node) -> tuple[Share, ...]:
    """Return the shares of a concatenation: the inputs lie in the output consecutively."""
    result = _byte_spec(node.outputs, 0)
    specs = [spec for i in range(len(node.inputs)) if (spec := _byte_spec(node.inputs, i))]
    if not result or len(specs) != len(node.inputs):
        return ()
    axis = _int_option(node, "axis") % max(1, len(result.shape))
    if node.op.endswith(".PACK"):
        axis = min(axis, max(0, len(result.shape) - 1))
    return concat_shares(result, specs, axis) if sum(spec.nbytes for spec in specs) == result.nbytes else ()


VIEWS: Mapping[str, Callable[[Node], tuple[Share, ...]]] = {
    "RESHAPE": _same_bytes_view,
    "EXPAND_DIMS": _same_bytes_view,
    "SQUEEZE": _same_bytes_view,
    "TRANSPOSE": _transpose_view,
    "GATHER": _gather_view,
    "SLICE": _slice_view,
    "STRIDED_SLICE": _strided_slice_view,
    "SPLIT": _split_views(0, 1),
    "SPLIT_V": _split_views(2, 0),
    "UNPACK": _unpack_views,
}
PARTS: Mapping[str, Callable[[Node], tuple[Share, ...]]] = {"CONCATENATION": _concat_parts, "PACK": _concat_parts}


PREFIX = "tflite."

WITH_EFFECTS = frozenset(
    {
        *("CUSTOM", "CALL", "DELEGATE", "STABLEHLO_CUSTOM_CALL", "STABLEHLO_COMPOSITE"),
        *("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"),
        *("RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"),
    }
)
"""Built-in operators with effects that are no outputs: tables, random numbers, calls of unknown code."""


@lru_cache(maxsize=4096)
def tflite_op(name: str) -> Op:
    """Return the record of an operator; an operator without known facts shares no bytes."""
    operator = name.removeprefix(PREFIX)
    view = operator in kernel_facts()["views"] and operator in VIEWS
    part = operator in kernel_facts()["parts"] and operator in PARTS
    return Op(
        name,
        views=partial(_shares_in_arena, VIEWS[operator]) if view else no_shares,
        parts=partial(_shares_in_arena, PARTS[operator]) if part else no_shares,
        inplace=partial(_inplace_shares, operator),
        pure=False,
        movable=operator in OPERATORS and operator not in WITH_EFFECTS,
    )


def _positions_in(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute listing operand positions."""
    positions = node.attrs.get(name, ())
    return tuple(int(position) for position in positions) if isinstance(positions, tuple) else ()


def _shares_in_arena(shares: Shares, node: Node) -> tuple[Share, ...]:
    """Return the views or concat operands in place given by `shares`, without operands outside the arena."""
    outside = _positions_in(node, "outside")
    return tuple(share for share in shares(node) if share.input not in outside)


def _inplace_shares(of: str, node: Node) -> tuple[Share, ...]:
    """Return the in-place shares of a node.

    Variables are always changed in place. Further operands may be overwritten where the kernel was measured to be safe.
    """
    variables = _positions_in(node, "variables")
    first = len(node.outputs) - len(variables)
    changed = tuple(Share(first + i, position) for i, position in enumerate(variables))
    return (*overwritable_operands(of, node, _positions_in(node, "outside")), *changed)
