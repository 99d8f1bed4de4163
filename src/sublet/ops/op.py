"""Op records: the facts of an operator, as the only interface of planner, passes, checker and runtime to operators.

A dialect is a function from the name of an op to the record, registered under a prefix; `lookup` finds the record for
any node. Facts are functions of one node: of specs, attributes and literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Protocol

from sublet.base.errors import SpecError, SubletError
from sublet.base.extents import Undecided
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.slice_maps import SliceMaps, Slices, no_slices


class Share(NamedTuple):
    """A statement that output `output` and input `input` of a node may share bytes.

    Byte 0 of the output and byte 0 of the input are `offset` bytes apart. For a view, the output starts at `offset` in
    the input. For a concat operand in place, the input starts at `offset` in the output.
    """

    output: int
    input: int
    offset: int = 0


def present_shares(node: Node, shares: Iterable[Share]) -> list[tuple[Value, Value, int]]:
    """Return (output, input, offset) for each share of a node, skipping shares with an omitted output or input."""
    present = ((node.outputs[share.output], node.inputs[share.input], share.offset) for share in shares)
    return [(output, read, offset) for output, read, offset in present if output is not None and read is not None]


Shares = Callable[[Node], tuple[Share, ...]]


def shares_of(node: Node, shares: Shares) -> tuple[Share, ...]:
    """Return the shares of a node; none where a comparison of its extents differs within the ranges of dimensions."""
    try:
        return shares(node)
    except Undecided:
        return ()


Specs = Sequence[TensorSpec | None]
Attrs = Mapping[str, Attr]
Infer = Callable[[Specs, Attrs], tuple[TensorSpec, ...]]
"""(specs of the inputs, None if omitted; attributes) -> specs of the outputs. Raises SpecError."""


class Emit(Protocol):
    """A function appending nodes to a graph, used by gradient rules and passes."""

    def __call__(self, op: str, *inputs: Value | None, **attrs: Attr) -> Value:
        """Append a node and return the only output.

        Raises SpecError if the op rejects the inputs or has several outputs.
        """

    def all_outputs(self, op: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """Append a node and return all outputs."""

    def constant(self, number: float, like: Value, shape: tuple[int, ...] = ()) -> Value:
        """Return a constant with the type of `like`, with `number` as every element."""


Grads = tuple[Value | None, ...]
Gradient = Callable[[Emit, Node, Grads], Sequence[Value | None]]
"""(emit, node, gradients of the outputs) -> gradients of the inputs. None is zero; not all outputs have None."""


@dataclass(frozen=True)
class GradientByExpansion:
    """A gradient by expansion, in place of a gradient rule.

    `expand` writes the node as smaller commands and returns their outputs; the smaller commands are differentiated.
    """

    expand: Callable[[Emit, Node], Sequence[Value]]


def no_shares(node: Node) -> tuple[Share, ...]:
    """Return no shares: the fact of an op without shared bytes."""
    return ()


class Append(NamedTuple):
    """A statement that output 0 of a node is input 0 with further rows along `axis`, at every layout.

    The first `before` rows stay, and the first `after` rows of the output have a content; all others have no meaning.
    """

    axis: int
    before: int
    after: int


Appends = Callable[[Node], Append | None]


def no_append(node: Node) -> None:
    """Return None: the fact of an op that appends no rows."""
    return


Strided = Callable[[Node], frozenset[int]]


def no_strides(node: Node) -> frozenset[int]:
    """Return no positions: the fact of an op without kernels that take strides."""
    return frozenset()


def can_overwrite(source: Value | None, result: Value | None) -> bool:
    """True if both values are plannable, have equal shapes, and elements of equal size, of at least a byte."""
    if source is None or result is None:
        return False
    a, b = source.spec, result.spec
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
        return False
    return a.shape == b.shape and a.dtype.bits == b.dtype.bits >= 8 and a.nbytes != 0


def overwrite_any(*positions: int, output: int = 0) -> Shares:
    """Return the fact: output `output` may overwrite any input at `positions` with equal shape and element size."""

    def shares(node: Node) -> tuple[Share, ...]:
        result = node.outputs[output] if output < len(node.outputs) else None
        return tuple(
            Share(output, i) for i in positions if i < len(node.inputs) and can_overwrite(node.inputs[i], result)
        )

    return shares


@dataclass(frozen=True)
class Op:
    """The facts of an op.

    views     the output *is* bytes of the input (Reshape, a contiguous Slice): no work if both lie at the same place,
              else a copy. No bytes are overwritten.
    parts     the output *contains* the input (Concat): no work for an input already written in place, else a copy. No
              bytes are overwritten.
    inplace   the kernel may overwrite the input with the output (Relu), provided no later node reads the input. Both
              have the same number of bytes.
    appends   the rows that output 0 adds to input 0, a buffer with room for more rows; None for other nodes.
    slices    the slices of the inputs needed for slices of the outputs, see `ops.slice_maps`.
    by_rows   true if backends compute a node row by row (`row_form`), with operands of which only each row is
              contiguous
    row_calls   true if backends compute rows in a call each, rather than in one call with strides
    strided   the positions of further inputs of which only each row may be contiguous: every kernel takes strides there
    pure      equal inputs give equal outputs, without side effects.
    movable   the node has no effects besides its outputs: an order search may move the node, though no pass may remove
              or repeat the node
    inputs, outputs   minimum and maximum number; None if unknown.
    infer     the specs of the outputs; None if unknown
    gradient  the rule of reverse mode, written with ops; None if missing
    operations  the multiplications and additions of a node, for a cost model; None for an estimate from the name
    """

    name: str
    views: Shares = no_shares
    parts: Shares = no_shares
    inplace: Shares = no_shares
    appends: Appends = no_append
    slices: Slices = no_slices
    by_rows: bool = False
    row_calls: bool = False
    strided: Strided = no_strides
    pure: bool = True
    movable: bool = False
    inputs: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None
    infer: Infer | None = None
    gradient: Gradient | GradientByExpansion | None = None
    operations: Callable[[Node], float] | None = None


SUSPEND = "cut.here"
"""The op of a suspension point: a node without computation, for stopping a run and inspecting the operands."""

MEASURE = "extent.measure"
"""The op that measures, in each run, an extent that depends on data: see `ops.measured`."""

_dialects: dict[str, Callable[[str], Op]] = {}


def register(prefix: str, dialect: Callable[[str], Op]) -> None:
    """Register `dialect` for every op named `prefix.*`."""
    _dialects[prefix] = dialect


register("cut", lambda name: Op(name, pure=False, outputs=(0, 0)))


def is_registered(prefix: str) -> bool:
    """Return True if a dialect is registered for `prefix.*`, here or by an integration."""
    return prefix in _dialects or any(prefix in each.dialects for each in installed_integrations())


def lookup(name: str) -> Op:
    """Return the record of the op `name` ("dialect.Name"). Raises SubletError if no dialect has the op."""
    prefix = name.partition(".")[0]
    dialect = _dialects.get(prefix) or resolve_entry("dialects", prefix)
    if dialect is None:
        known = {*_dialects, *(each for integration in installed_integrations() for each in integration.dialects)}
        raise SubletError(f"op {name!r} has an unknown dialect (known: {', '.join(sorted(known))})")
    _dialects[prefix] = dialect
    return dialect(name)


def slice_maps_of(node: Node) -> SliceMaps:
    """Return the slice maps of a node; none for sub-graphs, values of unknown shape, or attributes that do not fit."""
    try:
        return lookup(node.op).slices(node) if node.plannable and not node.subgraphs else ()
    except SpecError:
        return ()


# Contiguous slices: the blocks of a row-major tensor with a contiguous range of bytes.
#
# Let k be the last dimension with a smaller extent in the block than in the tensor. The block is contiguous if every
# dimension before k has extent 1 in the block.


def block_offset(whole: TensorSpec, shape: Sequence[int], begin: Sequence[int]) -> int | None:
    """Return the byte offset of the block of `shape` at `begin` in `whole`.

    None if the block is empty, not contiguous or not inside `whole`.
    """
    if len(shape) != len(whole.shape) or 0 in shape:
        return None
    if any(start < 0 or start + n > extent for start, n, extent in zip(begin, shape, whole.shape, strict=True)):
        return None
    smaller = [k for k, (n, extent) in enumerate(zip(shape, whole.shape, strict=True)) if n != extent]
    if smaller and prod(shape[: smaller[-1]]) != 1:
        return None
    strides = [prod(whole.shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(start * stride for start, stride in zip(begin, strides, strict=True))
    return byte_offset(whole.dtype, first, prod(shape))


def block_share(
    output: int, source: TensorSpec, shape: Sequence[int], begin: Sequence[int], operand: int = 0
) -> tuple[Share, ...]:
    """Return the share of output number `output`, the block of `shape` at `begin` in an input.

    `operand` is the number of the input and `source` the spec. Empty if the block is not contiguous.
    """
    offset = block_offset(source, shape, begin)
    return () if offset is None else (Share(output, operand, offset),)


def byte_offset(dtype: DType, first: int, size: int) -> int | None:
    """Return the byte offset of element `first`; None if the first byte or the length is not whole bytes."""
    if first * dtype.bits % 8 or size * dtype.bits % 8:
        return None
    return first * dtype.bits // 8


def concat_shares(result: TensorSpec, specs: Sequence[TensorSpec], axis: int) -> tuple[Share, ...]:
    """Return the shares of inputs lying one after another in `result`, the concatenation along `axis`.

    Empty if a dimension before the axis is larger than 1.
    """
    if prod(result.shape[:axis]) != 1:
        return ()
    shares: list[Share] = []
    begin = 0
    for i, spec in enumerate(specs):
        offset = byte_offset(spec.dtype, begin, spec.size)
        if spec.nbytes != 0 and spec.dtype is result.dtype and offset is not None:
            shares.append(Share(0, i, offset))
        begin += spec.size
    return tuple(shares)


def keeps_element_order(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """True if a transposition by `axes` keeps the order of elements: only dimensions of extent 1 move."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)


# Rows: the elements of a tensor along the leading axis, such as the samples of a batch. A channel slice of a batch is
# not contiguous, but each of its rows is.


@dataclass(frozen=True)
class RowForm:
    """A node as `count` nodes, one a row.

    node     the node of one row: the inputs at the positions `inputs` and all outputs have a leading extent of 1
    inputs   the positions of the inputs read row by row; every row needs the other inputs whole
    """

    node: Node
    count: int
    inputs: frozenset[int]

    def row(self, number: int) -> tuple[Node, Mapping[str, Value]]:
        """Return the node of a row, with names of its own; and the value of each of its sliced operands, by name."""

        def named(value: Value | None) -> Value | None:
            return None if value is None else replace(value, name=f"{value.name}[{number}]")

        inputs = tuple(named(value) if i in self.inputs else value for i, value in enumerate(self.node.inputs))
        outputs, name = tuple(map(named, self.node.outputs)), f"{self.node.name}[{number}]"
        pairs = zip((*inputs, *outputs), (*self.node.inputs, *self.node.outputs), strict=True)
        sliced = {row.name: value for row, value in pairs if row is not None and value is not None and row is not value}
        return replace(self.node, name=name, inputs=inputs, outputs=outputs), sliced


def row_form(node: Node) -> RowForm | None:
    """Return the form of a node computed row by row; None for a single row, or if rows depend on each other."""
    for each in slice_maps_of(node) if not node.subgraphs and lookup(node.op).by_rows else ():
        sliced = [axes for axes in (*each.inputs, *each.outputs) if axes is not None]
        if not each.exact or each.extent < 2 or each.window or each.addend is not None:
            continue
        if None in each.outputs or any(axes != range(1) for axes in sliced):
            continue
        rows = frozenset(i for i, axes in enumerate(each.inputs) if axes is not None)
        whole = {value for i, value in enumerate(node.inputs) if i not in rows}
        if any(value in whole for i, value in enumerate(node.inputs) if i in rows):
            continue
        inputs = tuple(_row_of(value) if i in rows else value for i, value in enumerate(node.inputs))
        outputs, attrs = tuple(map(_row_of, node.outputs)), dict(each.attrs(node.attrs, 0, 1))
        row = replace(node, inputs=inputs, outputs=outputs, attrs=attrs, scratch=None)
        return RowForm(row, each.extent, rows)
    return None


def _row_of(value: Value | None) -> Value | None:
    """Return a row of a value, under the name of the value."""
    if value is None or not isinstance(value.spec, TensorSpec):
        return value
    return replace(value, spec=TensorSpec(value.spec.dtype, (1, *value.spec.shape[1:])), literal=None)


def strided_operands(node: Node, form: RowForm | None) -> tuple[frozenset[int], frozenset[int]]:
    """Return the positions of the inputs, and of the outputs, of which only each row need be contiguous."""
    if form is None:
        return lookup(node.op).strided(node), frozenset()
    return form.inputs | lookup(node.op).strided(node), frozenset(range(len(node.outputs)))
