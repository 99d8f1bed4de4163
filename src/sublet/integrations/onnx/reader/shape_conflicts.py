"""Detection of shape conflicts: input and output shapes of a node that no run can have, reported with all operands.

A conflict is found by ONNX's shape inference or by Sublet's shape rule of the operator. At a node that certainly runs,
a conflict is an error. In a branch that may not be taken, or in a loop that may have no iteration, a conflict is a
warning, and the node's outputs stay unplanned. Declared types of the file are compared with inferred types in the same
way: with fixed extents a difference is an error; with bound dimensions a declaration may be outdated, which ONNX
allows, and a difference is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.base.extents import Dimension, Extent, as_extent, extent_at, is_ranged, substitute
from sublet.base.tensor import DType, TensorSpec, format_dims
from sublet.integrations.onnx.reader.conversion_state import ImportState, KnownValue
from sublet.integrations.onnx.reader.model_file import node_title
from sublet.integrations.onnx.reader.rules.images import is_corrected
from sublet.integrations.onnx.reader.rules.layers import require_elementwise
from sublet.integrations.onnx.reader.rules.shape_rule import Attribute, Extents, NodeShapes, ShapeConflict
from sublet.integrations.onnx.reader.rules.table import CONTRIB_RULES, RULES
from sublet.integrations.onnx.reader.types import TensorType, Type, attributes_of
from sublet.ir.model import CONTRADICTION, REFUSED_POINTS

if TYPE_CHECKING:
    import onnx

Claims = Mapping[str, Type]
"""The declared types of the values of a file, by name."""

MAX_SHOWN_ELEMENTS = 16
MAX_CONSTANT_ELEMENTS = 4096
"""Shape rules and inference do not see constants with more elements; shapes and axes are far smaller."""

CONTRIB = "com.microsoft"
OLDEST_OPSET = 7
"""The first supported version of the operator set; earlier versions broadcast differently."""


def node_shapes_of(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type], version: int
) -> NodeShapes:
    """Return the facts about the node needed by a shape rule.

    node     the node
    inputs   the known values of the inputs; None for an omitted input
    types    the inferred output types
    version  the version of the node's operator set
    """
    numbers = {i: found for i, known in enumerate(inputs) if known and (found := _integer_content(known)) is not None}
    attributes: dict[str, Attribute] = {}
    for name, content in attributes_of(node).items():
        if isinstance(content, int | float | str):
            attributes[name] = content
        elif isinstance(content, tuple) and all(isinstance(number, int) for number in content):
            attributes[name] = tuple(int(number) for number in content)
    shapes = [_extents_of(known.type if known else None) for known in inputs]
    return NodeShapes(
        shapes, [_extents_of(type) for type in types], [bool(k) for k in inputs], numbers, attributes, version
    )


def shape_conflict_of(node: onnx.NodeProto, shapes: NodeShapes) -> str:
    """Return the message of the shape conflict found by the operator's shape rule; "" without a conflict or rule."""
    return _conflict_with(node, shapes, lambda extent: None if is_ranged(extent) else extent)


def _conflict_with(node: onnx.NodeProto, shapes: NodeShapes, change: Callable[[int | None], int | None]) -> str:
    """Return the message of the shape conflict with changed extents: the conflict rules compare numbers."""
    rule = None
    if node.domain == CONTRIB:
        rule = CONTRIB_RULES.get(node.op_type)
    elif node.domain in ("", "ai.onnx") and shapes.version >= OLDEST_OPSET:
        rule = RULES.get(node.op_type)
    inputs, outputs = (
        [each and tuple(map(change, each)) for each in every] for every in (shapes.inputs, shapes.outputs)
    )
    try:
        if rule is not None:
            rule(replace(shapes, inputs=inputs, outputs=outputs))
    except ShapeConflict as found:
        return str(found)
    return ""


def warn_of_refused_points(program: ImportState, node: onnx.NodeProto, shapes: NodeShapes) -> None:
    """Record a warning if the shape rule refuses a point of the ranges, with dimensions to tie where that is enough.

    The rule is tried with numbers above 0: every dimension at one end of its range, or one at the other end. With
    extents of 0, rules are stricter than runs: a view of no bytes needs no kernel.
    """
    every = (*shapes.inputs, *shapes.outputs)
    given: Sequence[object] = [extent for shape in every for extent in shape or ()]
    extents = [extent for extent in given if isinstance(extent, Extent)]
    dims = list(dict.fromkeys(each for extent in extents for each in sorted(extent.dimensions, key=str)))

    def conflict_at(number_of: Callable[[Dimension], int]) -> str:
        point = {each.name: number_of(each) for each in dims}
        return _conflict_with(node, shapes, lambda extent: None if extent is None else extent_at(extent, point))

    def low_but(others: Sequence[Dimension]) -> str:
        return conflict_at(lambda each: each.high if each in others else max(1, each.low))

    lowest, highest = low_but([]), low_but(dims)
    alone = {each: (low_but([each]), low_but([other for other in dims if other != each])) for each in dims}
    messages = [found for pair in (*alone.values(), (lowest, highest)) for found in pair if found]
    if not messages:
        return
    changing = [
        each for each, (up, down) in alone.items() if bool(up) != bool(lowest) or bool(down) != bool(highest)
    ] or dims
    first, *others = changing
    has_equal_ends = all((each.low, each.high) == (first.low, first.high) for each in others)
    fix = ""
    if others and has_equal_ends and not (lowest or highest or low_but(changing)):
        fix = f"to give them one extent, pass {' '.join(f'--dim {each}={first}' for each in others)}"
    if not any(each.rule == REFUSED_POINTS and each.fix == fix != "" for each in program.warnings):
        what = f"a run is refused at some extents of {', '.join(map(str, changing))}: {messages[0]}"
        program.warn(REFUSED_POINTS, node_title(node), what, fix)


def differing_extents_of(node: onnx.NodeProto, shapes: NodeShapes, target: Sequence[object] | None) -> str:
    """Return the reason for an open extent where operands broadcast only at some points; "" without such an axis.

    The reason names the first two extents of an axis that are not proven equal, with dimensions to tie where that is
    enough. `target` is the shape that Expand broadcasts to, if known.
    """
    is_expand = node.op_type == "Expand" and target is not None
    if RULES.get(node.op_type) is not require_elementwise and node.op_type != "MatMul" and not is_expand:
        return ""
    both: Sequence[Sequence[object] | None] = [shapes.inputs[0], target] if is_expand else shapes.inputs
    operands = [shape[:-2] if node.op_type == "MatMul" else shape for shape in both if shape is not None]
    for axis in range(1, 1 + max(map(len, operands), default=0)):
        aligned: Sequence[object] = [shape[-axis] for shape in operands if len(shape) >= axis]
        ranged = list(dict.fromkeys(each for each in aligned if isinstance(each, Extent)))
        if len(ranged) > 1 and not any(isinstance(each, int) and each != 1 for each in aligned):
            one, other = ranged[:2]
            (first, *more), (second, *further) = (sorted(each.dimensions, key=str) for each in (one, other))
            can_tie = not more and not further and substitute(other, {second: as_extent(first)}) == one
            fix = f". To give them one extent, pass --dim {second}={first}" if can_tie else ""
            if first == second and not more and not further and (step := _equalizing_step(one, other, first)):
                words = f"pass --dim {first}=LOW..HIGH:{step}; multiply a step given before by {step}"
                fix = f". To give them one extent, {words}"
            return f"the extents {one} and {other} of its operands may differ within the ranges{fix}"
    return ""


def _equalizing_step(one: Extent, other: Extent, dimension: Dimension) -> int | None:
    """Return a number of steps of a dimension at whose multiples two extents are equal; None without such a number.

    The numbers tried are the divisors in both extents, and their least common multiple.
    """
    divisors = {int(each) for each in re.findall(r"//(\d+)", f"{one} {other}")}
    for step in sorted({*divisors, lcm(*divisors)}) if divisors else ():
        multiple = step * as_extent(Dimension(dimension.name, -(-dimension.low // step), dimension.high // step))
        if substitute(one, {dimension: multiple}) == substitute(other, {dimension: multiple}):
            return step
    return None


def report_shape_conflict(
    program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None], shapes: NodeShapes, what: str
) -> str:
    """Record a shape conflict as a warning if the node may never run, and return the message.

    Raises ModelError if the node certainly runs.
    """
    operands = ", ".join(_operand_text(name, known, shapes, i) for i, (name, known) in _present_operands(node, inputs))
    fixed_note = _fixed_operands_note(program, node, inputs)
    whole = f"node {node_title(node)}: {what}; it reads {operands or 'nothing'}{fixed_note}"
    if not program.conditional:
        raise ModelError(f"{program.where}: {whole}")
    why = f"{what}; the node fails only if a run reaches it (it reads {operands})"
    program.warn(CONTRADICTION, node_title(node), why)
    return whole


def check_declared_types(
    program: ImportState, node: onnx.NodeProto, types: Sequence[Type], claims: Mapping[str, Type], inner: bool
) -> None:
    """Compare the inferred output types of a node with the types declared by the file.

    `inner` is True for a node of a branch or body. Raises ModelError for a declaration that cannot be true. A
    difference in shape alone is only a warning if dimensions were bound, if `inner` is True, or if a tool may have
    written a shape from the wrong inference of ONNX or ONNX Runtime.
    """
    forgiven = bool(program.dims) or inner or node.domain == CONTRIB or is_corrected(node.op_type, node.domain)
    for name, type in zip(node.output, types, strict=True):
        claim = claims.get(name)
        if not isinstance(type, TensorType) or not isinstance(claim, TensorType) or _is_compatible(type, claim):
            continue
        what = f"{name!r} is {type} by its operator; the file declares {claim}"
        if type.elem == claim.elem and forgiven:
            program.warn("declared-shape", node_title(node), what)
        else:
            raise ModelError(f"{program.where}: node {node_title(node)}: {what}")


def _is_compatible(type: TensorType, claim: TensorType) -> bool:
    """True if the inferred type is compatible with the declared type."""
    if claim.elem and type.elem and claim.elem != type.elem:
        return False
    if type.dims is None or claim.dims is None:
        return True
    return len(type.dims) == len(claim.dims) and all(
        a == b or a is None or is_ranged(a) or is_ranged(b) or not b for a, b in zip(type.dims, claim.dims, strict=True)
    )  # some exporters write 0 for an unknown extent


def _extents_of(type: Type) -> Extents | None:
    return type.dims if isinstance(type, TensorType) else None


def _integer_content(known: KnownValue) -> tuple[int, ...] | None:
    """Return the elements of a small integer constant; None for any larger or different value."""
    weight = known.weight
    if weight is None or not weight.is_small or not isinstance(weight.spec, TensorSpec):
        return None
    if weight.spec.dtype not in (DType.I32, DType.I64) or weight.spec.size > MAX_CONSTANT_ELEMENTS:
        return None
    return tuple(int(number) for number in weight.array().ravel())


def _present_operands(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None]
) -> list[tuple[int, tuple[str, KnownValue]]]:
    """Return (position, (name, value)) of every input present."""
    pairs = enumerate(zip(node.input, inputs, strict=False))
    return [(i, (name, known)) for i, (name, known) in pairs if known is not None]


def _operand_text(name: str, known: KnownValue, shapes: NodeShapes, position: int) -> str:
    """Return the operand as text: the elements of a short constant vector, else the type."""
    numbers = shapes.constant_inputs.get(position)
    if numbers is not None and len(numbers) <= MAX_SHOWN_ELEMENTS and len(shapes.inputs[position] or ()) < 2:
        return f"{name!r} = {list(numbers)}"
    return f"{name!r} {known.type or format_dims(None)}"


def _fixed_operands_note(program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None]) -> str:
    """Return the part of a message on the bound dimensions: the operands fixed by the file, or a hint without any.

    The text is "" unless dimensions were bound.
    """
    if not program.dims:
        return ""
    fixed = [repr(name) for _, (name, known) in _present_operands(node, inputs) if known.weight is not None]
    bound = " ".join(f"--dim {name}={extent}" for name, extent in program.dims.items())
    if fixed:
        return f". In the file, constants define {', '.join(fixed)} and do not follow {bound}"
    return f". With {bound}: the network may take only some extents, such as multiples of 32, or the file fixes one"
