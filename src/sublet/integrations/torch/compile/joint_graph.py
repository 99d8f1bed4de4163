"""Graphs captured by AOTAutograd as one model: forward pass, suspension point, backward pass.

Parameters and buffers are weights of the model, in their own memory. Every further argument read by the program is
copied into the arena. Tensors saved by the forward pass stay in the arena until the backward pass. Each result is
copied or computed into the caller's memory as soon as possible. Arguments of the forward pass needed in the backward
pass are passed again by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.integrations.torch.compile.caller_outputs import COPY_IN, COPY_OUT, ComputedOutputs, fuse_computed_outputs
from sublet.integrations.torch.dialect import OperatorCall, StridedLayout, TensorArgument, encode
from sublet.integrations.torch.kernels.backend import strided_tensor
from sublet.integrations.torch.reader.conversion import ConversionLevel, TorchConversion
from sublet.integrations.torch.reader.exported_program import CPU, torch_contents
from sublet.integrations.torch.reader.fx_conversion import ConvertedValue, convert_graph, graph_results, placeholders
from sublet.integrations.torch.reader.traced_tensor import Extents, TracedTensor, fixed_number, is_dense, torch
from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.ops.op import SUSPEND

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode

PassValue = Any
"""An argument or result of a pass by position: a tensor, a number, None, or an object that the pass only hands on.

The position fixes the kind, and no type says which.
"""


@dataclass(frozen=True)
class CallResult:
    """The result of a call at one position: a computed tensor, an argument or elements of an argument, or a number.

    tensor           the tensor in the model; None for a number
    argument         the position of the argument returned, or viewed, by the result
    number           a plain value, or an `OpaqueArgument`
    leaves_arena     True if the result lies in memory of the caller; False for a tensor in the arena
    shared_with      the first result position holding the same value, for results sharing memory
    repeats          the first result position with the same tensor of the traced graph: both are one Python object
    argument_tensor  the traced argument viewed by the result; None if the result is the whole argument

    Example: results of f(x, n), with `a` read by the backward pass:

        x + 1         tensor, leaves the arena
        (x + 1)[0]    tensor, shared with the position of x + 1, also a result
        a             tensor in the arena
        x             argument: 0
        x[0]          argument: 0, tensor: x[0], argument_tensor: x
        n + 1         number, known since graphs are captured for each n
    """

    tensor: TracedTensor | None = None
    argument: int | None = None
    number: PassValue = None
    leaves_arena: bool = False
    shared_with: int | None = None
    repeats: int | None = None
    argument_tensor: TracedTensor | None = None

    @cached_property
    def layout(self) -> StridedLayout | None:
        """The layout of the tensor in the value; None for the whole value, and without a tensor."""
        return None if self.tensor is None else self.tensor.layout_or_none

    def resolve(self, position: int, args: Sequence[PassValue], computed: Mapping[int, Tensor]) -> PassValue:
        """Return the result at a position: a view of a shared result, a result in the caller's memory, or an argument.

        `computed` are the results in the caller's memory, by position.
        """
        if self.shared_with is not None and self.tensor is not None:
            # Detached from the shared result: for autograd, one of both results may have no gradient.
            return strided_tensor(computed[self.shared_with].detach(), self.layout)
        if self.leaves_arena:
            return computed[position]
        return self.resolve_from(args)

    def resolve_from(self, args: Sequence[PassValue]) -> PassValue:
        """Return the argument, the elements of the argument, or the number."""
        if self.argument is None:
            return self.number
        if self.argument_tensor is None or self.tensor is None:
            return args[self.argument]
        return view_as_traced(args[self.argument], self.argument_tensor, self.tensor)


def view_as_traced(given: Tensor, whole: TracedTensor, part: TracedTensor) -> Tensor:
    """Return the view `part` of a tensor traced as `whole`; `part` and `whole` are tensors of the same value.

    A tensor with another layout than traced is copied first.
    """
    t, layout = torch(), whole.layout
    same_layout = (given.shape, given.stride()) == (layout.size, layout.stride) or StridedLayout(
        tuple(given.shape), tuple(given.stride())
    ).canonical == layout.canonical
    if not same_layout:
        given = t.empty_strided(layout.size, layout.stride, dtype=given.dtype, device=given.device).copy_(given)
    view = part.layout
    return given.as_strided(view.size, view.stride, given.storage_offset() + view.offset - layout.offset)


@dataclass(frozen=True, eq=False)
class OpaqueArgument:
    """An argument neither tensor nor number, such as a mesh of devices. A program may only return the argument."""

    name: str


@dataclass
class CapturedPass:
    """The forward or the backward pass.

    arguments  the tensor arguments copied into the arena, by position; those of the forward pass before the pass begins
    results    the results by position
    """

    arguments: dict[int, TracedTensor] = field(default_factory=dict)
    results: list[CallResult] = field(default_factory=list)

    @cached_property
    def saved_results(self) -> dict[int, CallResult]:
        """The results in the arena after the pass, by position."""
        results = enumerate(self.results)
        return {i: r for i, r in results if r.tensor is not None and r.argument is None and not r.leaves_arena}

    @cached_property
    def _results_outside(self) -> list[tuple[int, CallResult]]:
        """The results outside the arena, each with the position."""
        return [
            (position, result) for position, result in enumerate(self.results) if position not in self.saved_results
        ]

    def resolve_results(self, args: Sequence[PassValue], computed: Mapping[int, Tensor]) -> list[PassValue]:
        """Return the results by position, None for tensors in the arena; see `CallResult.resolve`."""
        results = [None] * len(self.results)
        for position, result in self._results_outside:
            known = None if result.repeats is None else results[result.repeats]
            results[position] = result.resolve(position, args, computed) if known is None else known
        return results


@dataclass(frozen=True)
class CapturedProgram:
    """A captured program.

    passes    the forward pass, and the backward pass if any
    weights   weights by argument position of the forward pass; the caller passes the contents at the first call
    computed  results computed directly in the caller's memory, see `caller_outputs.py`
    layouts   the traced layouts of the weights by position; the kernels rely on them
    """

    model: Model
    passes: tuple[CapturedPass, ...]
    weights: Mapping[int, Value]
    computed: ComputedOutputs
    layouts: Mapping[int, StridedLayout] = field(default_factory=dict)

    def weight_as_traced(self, position: int, tensor: Tensor) -> Tensor:
        """Return a weight with the traced layout: `tensor` itself, or a copy if `tensor` has another layout.

        Dynamo's guards check strides, but not in every version and on every device. Without the copy, a weight replaced
        by a tensor of other strides would be read in the old order.
        """
        layout = self.layouts[position]
        if tensor.stride() == layout.stride:
            return tensor
        if StridedLayout(tuple(tensor.shape), tuple(tensor.stride())).canonical.stride == layout.canonical.stride:
            return tensor
        copy: Tensor = torch().empty_strided(layout.size, layout.stride, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor.detach())


def symbol_extents(forward: GraphModule, args: Sequence[PassValue]) -> Extents:
    """Return the extents of a call by the symbols taken as arguments of the graph."""
    known = {}
    for node, given in zip(placeholders(forward), args, strict=True):
        symbol = getattr(getattr(node.meta["val"], "node", None), "expr", None)
        if getattr(symbol, "is_Symbol", False) and isinstance(given, int):  # ragged extents are no int
            known[symbol] = int(given)
    return known


def capture_program(
    forward: GraphModule,
    backward: GraphModule | None,
    static: Collection[int],
    extents: Extents,
    device: str = CPU,
    runs_on: str = CPU,
) -> CapturedProgram:
    """Return the forward pass and, if present, the backward pass as one model, for arguments of the given extents.

    Args:
        forward: FX graph module of the forward pass.
        backward: FX graph module of the backward pass, or None.
        static: positions of parameters and buffers.
        extents: extents of the graph's symbols.
        device: the device of the traced tensors.
        runs_on: the device to run on; may differ from `device` if the traced tensors are stand-ins, as on "meta".

    Raises:
        ModelError: for operators or tensors without a plan.
    """
    name = "forward and backward" if backward else "forward"
    conversion = TorchConversion(where=name, extents=extents, device="" if runs_on == CPU else runs_on)
    level = conversion.root_level()
    first, weights, layouts = CapturedPass(), {}, dict[int, StridedLayout]()
    stands: list[ConvertedValue] = []
    for position, node in enumerate(placeholders(forward)):
        fake = node.meta["val"]
        if not hasattr(fake, "stride"):
            stands.append(_non_tensor_argument(fake, extents, node.name))
            continue
        _require_device(device, fake, node.name)
        if position in static and is_dense(fake):
            converted = conversion.add_weight(node.name, fake)
            weights[position], layouts[position] = converted.value, converted.layout
        else:
            converted = first.arguments[position] = conversion.new_tensor(node.name, fake)
        stands.append(converted)
    results = convert_graph(level, forward, stands)
    names = [getattr(node, "name", None) for node in graph_results(forward)]
    _add_results(level, first, results, dict(enumerate(stands)), _saved_positions(names, backward), names=names)
    pieces = [first]
    if backward is not None:
        level.emitter.nodes.append(Node(conversion.names.fresh("cut"), SUSPEND, (), ()))
        known = dict(zip(names, zip(results, first.results, strict=True), strict=True))
        pieces.append(_convert_backward(level, backward, known, device))
    returned = [each for piece in pieces for each in piece.results]
    staying = {each.tensor.value for each in returned if each.tensor is not None and not each.leaves_arena}
    level.emitter.nodes[:], computed = fuse_computed_outputs(level.emitter.nodes, staying)
    read = {value for node in level.emitter.nodes for value in reads_inside(node)}
    read |= {each.tensor.value for each in returned if each.tensor is not None and each.argument is None}
    for piece in pieces:  # an unread argument needs no bytes in the arena
        piece.arguments = {position: each for position, each in piece.arguments.items() if each.value in read}
    nodes = level.emitter.nodes
    nodes[:] = [node for node in nodes if node.op != COPY_IN or not read.isdisjoint(node.defs)]
    late = {value for node in nodes if node.op == COPY_IN for value in node.defs}
    inputs = [each.value for piece in pieces for each in piece.arguments.values() if each.value not in late]
    graph = level.program_graph(inputs, ())
    own = {value: tensor for value, tensor in conversion.weights.items() if value not in weights.values()}
    return CapturedProgram(Model(graph, weights=torch_contents(own)), tuple(pieces), weights, computed, layouts)


def _saved_positions(names: Sequence[str | None], backward: GraphModule | None) -> set[int]:
    """Return the positions of the results returned by the forward pass only for the backward pass: the last ones."""
    wanted = [node.name for node in placeholders(backward)] if backward is not None else []
    count = sum(name in names for name in wanted)
    return set(range(len(names) - count, len(names)))


def _convert_backward(
    level: ConversionLevel,
    module: GraphModule,
    known: Mapping[str | None, tuple[ConvertedValue, CallResult]],
    device: str,
) -> CapturedPass:
    """Convert the backward graph after the suspension point, and return the backward pass.

    `known` holds the results of the forward graph by node name.
    """
    piece, stands = CapturedPass(), []
    held: dict[int, ConvertedValue] = {}
    begin = len(level.emitter.nodes)
    for position, node in enumerate(placeholders(module)):
        if node.name in known:
            stand, result = known[node.name]
            if result.argument is not None:
                again = (
                    isinstance(stand, TracedTensor)
                    and stand.value not in level.conversion.weights
                    and _copies_arguments_late(level)
                )
                stand = held[position] = _add_backward_argument(level, piece, node, position) if again else stand
        else:
            _require_device(device, node.meta["val"], node.name)
            stand = held[position] = _add_backward_argument(level, piece, node, position)
        stands.append(stand)
    _add_results(level, piece, convert_graph(level, module, stands), held, set(), begin)
    return piece


def _copies_arguments_late(level: ConversionLevel) -> bool:
    """True if a node of the program copies arguments of the backward pass. On devices the pool copies in advance."""
    return not level.conversion.device


def _add_backward_argument(level: ConversionLevel, piece: CapturedPass, node: FxNode, position: int) -> TracedTensor:
    """Return the tensor of an argument of the backward pass, with a copy-in node if the program copies the argument."""
    tensor = piece.arguments[position] = level.conversion.new_tensor(node.name, node.meta["val"])
    if not _copies_arguments_late(level):
        return tensor
    attrs = {**encode(OperatorCall((), (), (tensor.layout_or_none,))), "position": position}
    level.emitter.nodes.append(
        Node(level.conversion.names.fresh(f"give.{node.name}"), COPY_IN, (), (tensor.value,), attrs)
    )
    return tensor


def _add_results(
    level: ConversionLevel,
    piece: CapturedPass,
    results: Sequence[ConvertedValue],
    held: Mapping[int, ConvertedValue],
    saved: set[int],
    begin: int = 0,
    names: Sequence[str | None] = (),
) -> None:
    """Add the results of a pass, with copy-out nodes right after the definitions, not before node `begin`.

    Args:
        results: converted results by position.
        held: arguments kept by the caller, by position; a result equal to an argument needs no copy.
        saved: positions of results only saved for the backward pass; these stay in the arena.
        begin: position of the first node of the pass.
        names: the nodes of the results, if results sharing memory in eager PyTorch must share memory; gradients need
            not.
    """
    sharing = bool(names)
    arguments = {
        stand: position for position, stand in held.items() if isinstance(stand, TracedTensor | OpaqueArgument)
    }
    shared = _shared_results(level, results, arguments, saved) if sharing else {}
    known = _argument_views(level, results, held, saved, sharing)
    for position, each in enumerate(results):
        if isinstance(each, TracedTensor | OpaqueArgument) and each in arguments:
            piece.results.append(CallResult(each if isinstance(each, TracedTensor) else None, argument=arguments[each]))
            continue
        if not isinstance(each, TracedTensor) or position in known:
            piece.results.append(known.get(position, CallResult(number=each)))
            continue
        home, first = shared.get(position, (each, None))
        taken = position not in saved
        home = level.with_eager_layout(home) if taken and first is None else home
        if taken and first in (None, position):
            attrs = {
                **encode(OperatorCall((home.as_argument(0) if first is None else TensorArgument(0),))),
                "position": position,
            }
            name = level.conversion.names.fresh(f"take.{home.value.name}")
            _insert_after_definition(level, home.value, Node(name, COPY_OUT, (home.value,), (), attrs), begin)
        same = names.index(names[position]) if first is not None else position
        repeats = same if same != position and same not in saved else None
        piece.results.append(CallResult(home, leaves_arena=taken, shared_with=first, repeats=repeats))


def _argument_views(
    level: ConversionLevel,
    results: Sequence[ConvertedValue],
    held: Mapping[int, ConvertedValue],
    saved: set[int],
    sharing: bool,
) -> dict[int, CallResult]:
    """Return the results viewing arguments, by position; such results need no place.

    With `sharing`, all results of the caller viewing an argument are returned, as the parts of a split argument. A
    saved result viewing an argument other than a weight is returned only if some further saved result lies in the
    arena: the backward pass finds the arena through a saved tensor.
    """
    stands = {each.value: position for position, each in held.items() if isinstance(each, TracedTensor)}
    homes = {
        i: level.conversion.in_defining_value(each) for i, each in enumerate(results) if isinstance(each, TracedTensor)
    }
    in_arena = any(homes[i].value not in stands for i in saved if i in homes)
    return {
        i: CallResult(home, argument=stands[home.value], argument_tensor=held[stands[home.value]])
        for i, home in homes.items()
        if home.value in stands and (sharing if i not in saved else in_arena or home.value in level.conversion.weights)
    }


def _shared_results(
    level: ConversionLevel,
    results: Sequence[ConvertedValue],
    arguments: Mapping[TracedTensor | OpaqueArgument, int],
    saved: set[int],
) -> dict[int, tuple[TracedTensor, int | None]]:
    """Return the caller's results sharing one value, by position, each with the first position of the same value.

    Results of a training graph share memory as in inference: two results equal to one tensor, or the parts of a split.
    A result without dense layout, such as an expanded tensor, is also returned as a view of its value, to keep the
    strides of eager PyTorch. Results only `saved` for the backward pass stay in the arena.
    """
    computed = {value for node in level.emitter.nodes for value in node.defs}
    homes: dict[Value, dict[int, TracedTensor]] = {}
    for position, each in enumerate(results):
        if isinstance(each, TracedTensor) and each not in arguments and position not in saved:
            home = level.conversion.in_defining_value(each)
            if home.value in computed:
                homes.setdefault(home.value, {})[position] = home
    together = (
        positions
        for positions in homes.values()
        if len(positions) > 1 or not all(home.layout.is_dense for home in positions.values())
    )
    return {position: (home, min(positions)) for positions in together for position, home in positions.items()}


def _insert_after_definition(level: ConversionLevel, value: Value, node: Node, begin: int) -> None:
    """Insert a node right after the definition of `value`, to end the live range there; not before node `begin`."""
    nodes = level.emitter.nodes
    definition = next((i for i, other in enumerate(nodes) if value in other.defs), len(nodes) - 1)
    nodes.insert(max(definition + 1, begin), node)


def _non_tensor_argument(fake: object, extents: Extents, name: str) -> ConvertedValue:
    """Return a number with known extents substituted, or an `OpaqueArgument` for any other non-tensor argument."""
    numbers = (bool, int, float, torch().SymInt, torch().SymFloat, torch().SymBool)
    return fixed_number(fake, extents, name) if isinstance(fake, numbers) else OpaqueArgument(name)


def _require_device(device: str, fake: Tensor, name: str) -> None:
    """Raise ModelError if a traced tensor lies on a device of another type."""
    if fake.device.type != device.partition(":")[0]:
        raise ModelError(f"{name}: a tensor on {fake.device}, in a graph on {device}")
