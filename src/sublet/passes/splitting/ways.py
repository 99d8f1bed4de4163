"""The ways in which a node can be cut: what of its operands goes with some of its rows, and what pieces give.

Two kinds of rows are known. "batch": the leading rows of what is computed a sample at a time; what is summed over
samples, as the gradient of a weight, then adds up piece by piece. "result": the leading rows of the result, for
gradients of large weights and what optimisers do with them. Rows lie together, so that slices of them are views.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from sublet.base.ranges import Ranges, divided
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import activation, elementwise
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.ops.nn.layout import cut

BATCH, RESULT, ONTO, EARLY, MOMENTUM = "batch", "result", "onto", "early", "momentum"
"""What may be asked of a node. The last three cut nothing. `ONTO`: a gradient of rows that were looked up is added onto
the other gradient, and is never whole. `EARLY`: an update runs as soon as it can, so that its gradient does not wait
for others. `MOMENTUM`: so too, and the momentum takes up the gradient term by term."""

Shape = tuple[int, ...]
Operands = Sequence[Value | None]

Attrs = Callable[[int], Mapping[str, Attr]]

Write = Callable[[Emitter, Node, Operands, int, int], tuple[Value, ...]]
"""(emit, node, operands, first row, row after the last) -> the results of a piece."""


@dataclass(frozen=True)
class Way:
    """How a node is cut.

    extent  the rows that are divided
    reads   by operand the extents of one row; None where every piece reads all of it
    gives   by output the extents of one row; None where the pieces add up to it
    attrs   the attributes that depend on the rows
    write   writes a piece, where it is more than the same command
    """

    extent: int
    reads: tuple[Shape | None, ...]
    gives: tuple[Shape | None, ...]
    attrs: Attrs = field(default=lambda rows: {})
    write: Write | None = None

    def bounds(self, pieces: int) -> Ranges:
        """The rows of each piece."""
        return divided(self.extent, pieces)


Makers = Mapping[str, tuple[Callable[[Node], Way | None], ...]]


def way(node: Node, kind: str, pieces: int) -> Way | None:
    """How to cut a node into so many pieces; None where nobody knows how. The first way with equal pieces, or any."""
    tensors = all(isinstance(value.spec, TensorSpec) and value.nbytes for value in (*node.uses, *node.defs))
    if node.subgraphs or not tensors or not node.defs or not node.op.startswith(PREFIX) or pieces < 2:
        return None
    found = [each for each in ways(node, {BATCH: BY_BATCH, RESULT: BY_RESULT}.get(kind, {})) if each.extent >= pieces]
    equal = [each for each in found if each.extent % pieces == 0]
    chosen = next(iter(equal or found), None)
    return None if chosen is not None and node.op == "nn.reshape" and chosen.extent % pieces else chosen


def ways(node: Node, table: Makers) -> list[Way]:
    """All ways of a table to cut a command of the nn dialect."""
    makers = table.get(node.op.removeprefix(PREFIX), ()) if node.op.startswith(PREFIX) else ()
    return [each for make in makers if (each := make(node)) is not None]


def summed(node: Node, chosen: Way) -> bool:
    """Whether pieces of some result add up, so that the sum is rounded in another order."""
    return any(row is None and value is not None for row, value in zip(chosen.gives, node.outputs, strict=False))


def _shape(value: Value | None) -> Shape:
    return spec_of(value).shape if value is not None else ()


def _led(node: Node, whole: Collection[int] = (), attrs: Attrs | None = None) -> Way | None:
    """Cut along the first axis of all operands, but for those at the positions `whole`, and of all results."""
    first = _shape(node.outputs[0])
    if not first or not first[0]:
        return None
    reads = tuple(None if v is None or i in whole else _shape(v)[1:] for i, v in enumerate(node.inputs))
    cuts = [_shape(v) for i, v in enumerate(node.inputs) if v is not None and i not in whole]
    gives = [_shape(v) for v in node.outputs if v is not None]
    if any(not shape or shape[0] != first[0] for shape in (*cuts, *gives)) or not cuts:
        return None
    return Way(first[0], reads, tuple(_shape(v)[1:] for v in node.outputs), attrs or (lambda rows: {}))


def _leading(*whole: int) -> Callable[[Node], Way | None]:
    return lambda node: _led(node, whole)


def _shaped(*whole: int) -> Callable[[Node], Way | None]:
    """As `_leading`, of a command with the shape of its result for an attribute."""

    def make(node: Node) -> Way | None:
        rest = _shape(node.outputs[0])[1:]
        return _led(node, whole, lambda rows: {"shape": (rows, *rest)})

    return make


def _summing(*whole: int) -> Callable[[Node], Way | None]:
    """Operands are cut along their first axis, results add up."""

    def make(node: Node) -> Way | None:
        cuts = [_shape(v) for i, v in enumerate(node.inputs) if v is not None and i not in whole]
        if not cuts or any(not shape or shape[0] != cuts[0][0] for shape in cuts):
            return None
        reads = tuple(None if v is None or i in whole else _shape(v)[1:] for i, v in enumerate(node.inputs))
        return Way(cuts[0][0], reads, (None,) * len(node.outputs))

    return make


def _broadcast(node: Node) -> Way | None:
    """Along the first axis: operands that do not have it, or repeat along it, are read whole."""
    shape = _shape(node.outputs[0])
    if not shape or any(_shape(v) != shape for v in node.outputs):
        return None
    cut_at = [len(_shape(v)) == len(shape) and _shape(v)[0] == shape[0] for v in node.inputs]
    reads = tuple(_shape(v)[1:] if along else None for v, along in zip(node.inputs, cut_at, strict=True))
    return Way(shape[0], reads, (shape[1:],) * len(node.outputs)) if any(cut_at) else None


def _flat(node: Node) -> Way | None:
    """All axes but the last as rows: operands have the shape of the result, or one axis at most."""
    shape = _shape(node.outputs[0])
    if len(shape) < 2 or any(_shape(v) != shape for v in node.outputs):
        return None
    if any(_shape(v) != shape and len(_shape(v)) > 1 for v in node.inputs):
        return None
    reads = tuple(shape[-1:] if _shape(v) == shape else None for v in node.inputs)
    return Way(prod(shape[:-1]), reads, (shape[-1:],) * len(node.outputs)) if any(reads) else None


def _linear(node: Node) -> Way | None:
    x, y = _shape(node.inputs[0]), _shape(node.outputs[0])
    if len(x) < 2:
        return None
    return Way(prod(x[:-1]), (x[-1:], *(None,) * (len(node.inputs) - 1)), (y[-1:],))


def _matmul(node: Node) -> Way | None:
    """By rows of a; by the rows that are summed over, where both factors have them first; by a batch of both."""
    a, b, y = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.outputs[0])
    if len(a) == len(b) and len(a) > 2:
        return _led(node)
    if len(b) != 2:
        return None
    if len(a) > 2 and node.attrs["transpose_a"]:
        return _led(node, (1,))
    if not node.attrs["transpose_a"]:
        return Way(prod(a[:-1]), (a[-1:], None), (y[-1:],))
    return None if node.attrs["transpose_b"] else Way(a[0], (a[1:], b[1:]), (None,))


def _gemm(node: Node) -> Way | None:
    """By the rows that are summed over, where both factors have them first: the first piece is added to c."""
    a, b = _shape(node.inputs[0]), _shape(node.inputs[1])
    if not node.attrs["transpose_a"] or node.attrs["transpose_b"]:
        return None
    return Way(a[0], (a[1:], b[1:], *(None,) * (len(node.inputs) - 2)), (None,))


def _matmul_rows(node: Node) -> Way | None:
    """By rows of the result: columns of a transposed factor, which are copied."""
    a, b, y = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.outputs[0])
    if len(a) != 2 or len(b) != 2:
        return None
    if not node.attrs["transpose_a"]:
        return _matmul(node)

    def write(emit: Emitter, node: Node, operands: Operands, begin: int, end: int) -> tuple[Value, ...]:
        first, second = operands
        assert first is not None
        return emit.several(node.op, cut(emit, first, 1, begin, end), second, **node.attrs)

    return Way(y[0], (None, None), (y[1:],), write=write)


def _looked_up_rows(node: Node) -> Way | None:
    """By rows of the table: what was taken from other rows is added to one more row, which is left out."""

    def write(emit: Emitter, node: Node, operands: Operands, begin: int, end: int) -> tuple[Value, ...]:
        dy, indices = operands
        assert dy is not None
        assert indices is not None
        at = emit("nn.sub", indices, emit.constant(begin, indices))
        not_before = emit("nn.greater_equal", at, emit.constant(0, at))
        inside = emit("nn.logical_and", not_before, emit("nn.less", at, emit.constant(end - begin, at)))
        kept = emit("nn.where", inside, at, emit.constant(end - begin, indices))
        table = emit("nn.embedding_gradient", dy, kept, rows=end - begin + 1)
        return (cut(emit, table, 0, 0, end - begin),)

    table = _shape(node.outputs[0])
    return Way(table[0], (None, None), (table[1:],), write=write)


def _axis_after_first(make: Callable[[Node], Way | None]) -> Callable[[Node], Way | None]:
    """Only where the axis is another than the first."""

    def checked(node: Node) -> Way | None:
        axis, rank = node.attrs["axis"], len(_shape(node.inputs[0]))
        return make(node) if isinstance(axis, int) and rank and axis % rank else None

    return checked


def _trailing(make: Callable[[Node], Way | None]) -> Callable[[Node], Way | None]:
    """Only where fewer axes are normalised than there are."""

    def checked(node: Node) -> Way | None:
        count = node.attrs["axes"]
        return make(node) if isinstance(count, int) and count < len(_shape(node.outputs[0])) else None

    return checked


def _norm_gradient(node: Node) -> Way | None:
    """(dy, x, scale, statistics...) -> (dx, gradients of scale and bias, which add up)."""
    found = _led(_only_first(node), (2,))
    return (
        None if found is None else Way(found.extent, found.reads, (found.gives[0], *(None,) * (len(node.outputs) - 1)))
    )


def _only_first(node: Node) -> Node:
    return Node(node.name, node.op, node.inputs, node.outputs[:1], node.attrs)


def _reduced(node: Node) -> Way | None:
    """Sums: over the first axis they add up, over others they are rows."""
    axes, rank = node.attrs["axes"], len(_shape(node.inputs[0]))
    assert isinstance(axes, tuple)
    first = not axes or 0 in {int(axis) % max(rank, 1) for axis in axes}
    if not first:
        return _led(node)
    return _summing()(node) if node.op == "nn.sum" else None


def _summed_to(node: Node) -> Way | None:
    x, y = _shape(node.inputs[0]), _shape(node.outputs[0])
    if len(x) == len(y) and x and x[0] == y[0] and x[0] > 1:
        return _shaped()(node)
    return _summing()(node)


def _repeated(node: Node) -> Way | None:
    x, y = _shape(node.inputs[0]), _shape(node.outputs[0])
    if len(x) == len(y) and x and x[0] == y[0]:
        return _shaped()(node)
    if not y or not y[0]:
        return None
    return Way(y[0], (None,), (y[1:],), lambda rows: {"shape": (rows, *y[1:])})


def _attended(mask: int) -> Callable[[Node], Way | None]:
    """With a mask for each sample, or one for all, at this position."""

    def make(node: Node) -> Way | None:
        found = _shape(node.inputs[mask]) if len(node.inputs) > mask else ()
        one = len(found) < len(_shape(node.inputs[0])) or found[0] == 1
        return _led(node, (mask,) if one else ())

    return make


def _transposed(node: Node) -> Way | None:
    axes = node.attrs["axes"]
    return _led(node) if isinstance(axes, tuple) and axes and axes[0] == 0 else None


def _sliced(node: Node) -> Way | None:
    starts, ends, steps = (tuple(pick(node.attrs, key)) for key in ("starts", "ends", "steps"))
    x = _shape(node.inputs[0])
    if not x or starts[0] != 0 or ends[0] != x[0] or steps[0] != 1:
        return None
    return _led(node, (), lambda rows: {"ends": (rows, *(int(end) for end in ends[1:]))})


def _reshaped(node: Node) -> Way | None:
    """Any equal pieces: the elements stay in their order."""
    size = prod(_shape(node.inputs[0]))
    return Way(size, ((),), ((),))


def _update(node: Node) -> Way | None:
    """What optimisers do, element by element: (w, gradient, rate, state...)."""
    w = _shape(node.inputs[0])
    if not w:
        return None
    reads = tuple(w[1:] if _shape(v) == w and v is not None else None for v in node.inputs)
    return Way(w[0], reads, tuple(w[1:] for _ in node.outputs))


POINTWISE = (
    *(each.name for each in (*elementwise.COMMANDS, *activation.COMMANDS)),
    *("cast", "copy", "stop_gradient", "mse", "mse_gradient", "smooth_l1", "smooth_l1_gradient"),
    *("binary_cross_entropy", "sigmoid_binary_cross_entropy"),
)
_POINTWISE: Makers = dict.fromkeys(POINTWISE, (_broadcast, _flat))

BY_BATCH: Makers = {
    **_POINTWISE,
    "conv": (_leading(1, 2),),
    "conv_transpose": (_leading(1, 2),),
    "conv_input_gradient": (_shaped(1),),
    "conv_weight_gradient": (_summing(),),
    "max_pool": (_leading(),),
    "max_pool_gradient": (_leading(),),
    "max_pool_gather": (_leading(),),
    "avg_pool": (_leading(),),
    "avg_pool_gradient": (_shaped(),),
    "batch_norm_inference": (_axis_after_first(_leading(1, 2, 3, 4)),),
    "layer_norm": (_trailing(_leading(1, 2)),),
    "layer_norm_gradient": (_trailing(_norm_gradient),),
    "rms_norm": (_trailing(_leading(1, 2)),),
    "rms_norm_gradient": (_trailing(_norm_gradient),),
    "softmax": (_axis_after_first(_leading()),),
    "softmax_gradient": (_axis_after_first(_leading()),),
    "log_softmax": (_axis_after_first(_leading()),),
    "log_softmax_gradient": (_axis_after_first(_leading()),),
    **dict.fromkeys(("upsample", "one_hot", "lstm_cell", "gru_cell", "categorical_cross_entropy"), (_leading(),)),
    **dict.fromkeys(("argmax", "argmin", "cumsum"), (_axis_after_first(_leading()),)),
    "softmax_cross_entropy": (_leading(),),
    "softmax_cross_entropy_gradient": (_leading(),),
    "linear": (_linear,),
    "matmul": (_matmul,),
    "gemm": (_gemm,),
    **dict.fromkeys(("sum", "mean", "max", "min"), (_reduced,)),
    "sum_to": (_summed_to,),
    "broadcast_to": (_repeated,),
    "transpose": (_transposed,),
    "slice": (_sliced,),
    "concat": (_axis_after_first(_leading()),),
    "split": (_axis_after_first(_leading()),),
    "reshape": (_reshaped,),
    "attention": (_attended(3),),
    "attention_gradient": (_attended(4),),
    "embedding": (_leading(0),),
    "embedding_gradient": (_summing(),),
}
"""By the name of the command; an operand that every piece reads is named by its position."""

OF_A_PART: Makers = {
    "batch_norm": (lambda node: _axis_after_first(_leading(1, 2, 3, 4))(_only_first(node)),),
    "dropout": (_leading(1),),
}
"""What computes something else of a part: with its statistics, with the numbers drawn for it. Who cuts must know."""

BY_RESULT: Makers = {
    **_POINTWISE,
    "matmul": (_matmul_rows,),
    "embedding_gradient": (_looked_up_rows,),
    "reshape": (_reshaped,),
    **dict.fromkeys(("sgd", "adam", "adamw", "rmsprop"), (_update,)),
}
