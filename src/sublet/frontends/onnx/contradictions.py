"""Shapes that contradict each other: found by ONNX's rule or by ours, told with the node and all operands.

Where a node certainly runs that is an error. In a branch that may never be taken, or a loop that may have no
rounds, it is a warning, and what the node would give lies outside the plan. The same holds of what a file declares:
with fixed extents a claim that is not what the operators give is an error; bound dimensions may outdate claims,
which ONNX allows, so then it is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec, shown
from sublet.frontends.onnx.attributes import attributes_of
from sublet.frontends.onnx.order import title
from sublet.frontends.onnx.program import Known, Program
from sublet.frontends.onnx.rules.rule import Attribute, Contradiction, Extents, Seen
from sublet.frontends.onnx.rules.table import CONTRIB_RULES, RULES
from sublet.frontends.onnx.rules.windows import is_corrected
from sublet.frontends.onnx.types import TensorType, Type

if TYPE_CHECKING:
    import onnx

Claims = Mapping[str, Type]
"""What a file declares of its values, by name."""

SHOWN_ELEMENTS = 16
DATA_ELEMENTS = 4096
"""Constants with more elements than this are not shown to the rules."""

CONTRIB = "com.microsoft"
OLDEST = 7
"""Before this version of the operator set operands were broadcast in another way."""


def seen(node: onnx.NodeProto, inputs: Sequence[Known | None], types: Sequence[Type], version: int) -> Seen:
    """The node as its rule sees it."""
    numbers = {i: found for i, known in enumerate(inputs) if known and (found := _numbers(known)) is not None}
    attributes: dict[str, Attribute] = {}
    for name, content in attributes_of(node).items():
        if isinstance(content, int | float | str):
            attributes[name] = content
        elif isinstance(content, tuple) and all(isinstance(number, int) for number in content):
            attributes[name] = tuple(int(number) for number in content)
    shapes = [_extents(known.type if known else None) for known in inputs]
    return Seen(shapes, [_extents(type) for type in types], [bool(k) for k in inputs], numbers, attributes, version)


def contradiction(node: onnx.NodeProto, sight: Seen) -> str:
    """What the operator's own rule says against its shapes; "" for nothing."""
    rule = None
    if node.domain == CONTRIB:
        rule = CONTRIB_RULES.get(node.op_type)
    elif node.domain in ("", "ai.onnx") and sight.version >= OLDEST:
        rule = RULES.get(node.op_type)
    try:
        if rule is not None:
            rule(sight)
    except Contradiction as found:
        return str(found)
    return ""


def tell(program: Program, node: onnx.NodeProto, inputs: Sequence[Known | None], sight: Seen, what: str) -> str:
    """Note what is wrong with a node that may never run, and return it. Raises ModelError for one that runs."""
    operands = ", ".join(_operand(name, known, sight, i) for i, (name, known) in _named(node, inputs))
    whole = f"node {title(node)}: {what}; it reads {operands or 'nothing'}{_baked_in(program, node, inputs)}"
    if not program.conditional:
        raise ModelError(f"{program.where}: {whole}")
    program.warn("contradiction", title(node), f"{what}; it can only fail if it is ever run (it reads {operands})")
    return whole


def hold(
    program: Program, node: onnx.NodeProto, types: Sequence[Type], claims: Mapping[str, Type], inner: bool
) -> None:
    """Compare what a node gives with what the file claims of it; `inner` for a node of a branch or body.

    Raises ModelError for a claim that cannot be true. A shape that ONNX's or ONNX Runtime's own inference may have
    told wrong, and a tool has written into the file, is a warning.
    """
    forgiven = bool(program.dims) or inner or node.domain == CONTRIB or is_corrected(node.op_type, node.domain)
    for name, type in zip(node.output, types, strict=True):
        claim = claims.get(name)
        if not isinstance(type, TensorType) or not isinstance(claim, TensorType) or _agree(type, claim):
            continue
        what = f"{name!r} is {type} by its operator; the file declares {claim}"
        if type.elem == claim.elem and forgiven:
            program.warn("declared-shape", title(node), what)
        else:
            raise ModelError(f"{program.where}: node {title(node)}: {what}")


def _agree(type: TensorType, claim: TensorType) -> bool:
    if claim.elem and type.elem and claim.elem != type.elem:
        return False
    if type.dims is None or claim.dims is None:
        return True
    return len(type.dims) == len(claim.dims) and all(
        a == b or a is None or not b for a, b in zip(type.dims, claim.dims, strict=True)
    )  # some exporters write 0 for what they do not know


def _extents(type: Type) -> Extents | None:
    return type.dims if isinstance(type, TensorType) else None


def _numbers(known: Known) -> tuple[int, ...] | None:
    weight = known.weight
    if weight is None or not weight.small or not isinstance(weight.spec, TensorSpec):
        return None
    if weight.spec.dtype not in (DType.I32, DType.I64) or weight.spec.size > DATA_ELEMENTS:
        return None
    return tuple(int(number) for number in weight.array().ravel())


def _named(node: onnx.NodeProto, inputs: Sequence[Known | None]) -> list[tuple[int, tuple[str, Known]]]:
    pairs = enumerate(zip(node.input, inputs, strict=False))
    return [(i, (name, known)) for i, (name, known) in pairs if known is not None]


def _operand(name: str, known: Known, sight: Seen, position: int) -> str:
    numbers = sight.numbers.get(position)
    if numbers is not None and len(numbers) <= SHOWN_ELEMENTS and len(sight.inputs[position] or ()) < 2:
        return f"{name!r} = {list(numbers)}"
    return f"{name!r} {known.type or shown(None)}"


def _baked_in(program: Program, node: onnx.NodeProto, inputs: Sequence[Known | None]) -> str:
    """What the file fixes, when dimensions were bound."""
    if not program.dims:
        return ""
    fixed = [repr(name) for _, (name, known) in _named(node, inputs) if known.weight is not None]
    what = f"{', '.join(fixed)} comes from constants" if fixed else "an extent is written"
    bound = " ".join(f"--dim {name}={extent}" for name, extent in program.dims.items())
    return f". In the file {what} and does not follow {bound}"
