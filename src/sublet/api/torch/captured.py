"""Graphs captured by AOTAutograd as one model: forward pass, suspension point, backward pass.

Parameters and buffers are weights of the model, in their own memory. Every further argument read by the program is
copied into the arena. Tensors saved by the forward pass stay in the arena until the backward pass. Each result is
copied or computed into the caller's memory as soon as possible. Arguments of the forward pass needed in the backward
pass are passed again by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.api.torch.taking import GIVE, TAKE, Computed, computed_for_callers
from sublet.base.errors import ModelError
from sublet.frontends.torch.conversion import Conversion, Level
from sublet.frontends.torch.devices import CPU
from sublet.frontends.torch.exported import held
from sublet.frontends.torch.tensors import Extents, Tensor, fixed, is_dense, torch
from sublet.frontends.torch.traced import convert_traced, placeholders, results_of
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.ir.walk import reads_inside
from sublet.ops.aten import Call, Strided, Use, encode
from sublet.runtime.cuts import CUT


@dataclass(frozen=True)
class Result:
    """The result of a call at one position: a computed tensor, an argument or elements of an argument, or a number.

    tensor           the tensor in the model; None for a number
    argument         the position of the argument returned, or viewed, by the result
    number           a plain value, or an `OpaqueArgument`
    leaves_arena     True if the result lies in memory of the caller; False for a tensor in the arena
    shared_with      the first result position holding the same value, for results sharing memory
    argument_tensor  the traced argument viewed by the result; None if the result is the whole argument

    Example: results of f(x, n), with `a` read by the backward pass:

        x + 1         tensor, leaves the arena
        (x + 1)[0]    tensor, shared with the position of x + 1, also a result
        a             tensor in the arena
        x             argument: 0
        x[0]          argument: 0, tensor: x[0], argument_tensor: x
        n + 1         number, known since graphs are captured for each n
    """

    tensor: Tensor | None = None
    argument: int | None = None
    number: Any = None
    taken: bool = False
    shared: int | None = None
    whole: Tensor | None = None

    def of(self, args: Sequence[Any]) -> Any:
        """Return the argument, the elements of the argument, or the number."""
        if self.argument is None:
            return self.number
        if self.whole is None or self.tensor is None:
            return args[self.argument]
        return elements(args[self.argument], self.whole, self.tensor)


def elements(given: Any, whole: Tensor, part: Tensor) -> Any:
    """Return the view `part` of a tensor traced as `whole`; `part` and `whole` are tensors of the same value.

    A tensor with another layout than traced is copied first.
    """
    t, layout = torch(), whole.layout
    same_layout = Strided(tuple(given.shape), tuple(given.stride())).normal == layout.normal
    if not same_layout:
        given = t.empty_strided(layout.size, layout.stride, dtype=given.dtype, device=given.device).copy_(given)
    view = part.layout
    return given.as_strided(view.size, view.stride, given.storage_offset() + view.offset - layout.offset)


@dataclass(frozen=True, eq=False)
class Passed:
    """An argument neither tensor nor number, such as a mesh of devices. A program may only return the argument."""

    name: str


@dataclass
class Piece:
    """The forward or the backward pass.

    arguments  the tensor arguments copied into the arena, by position; those of the forward pass before the pass begins
    results    the results by position
    """

    given: dict[int, Tensor] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)


@dataclass(frozen=True)
class Captured:
    """A captured program.

    passes    the forward pass, and the backward pass if any
    weights   weights by argument position of the forward pass; the caller passes the contents at the first call
    computed  results computed directly in the caller's memory, see `caller_outputs.py`
    layouts   the traced layouts of the weights by position; the kernels rely on them
    """

    model: Model
    pieces: tuple[Piece, ...]
    weights: Mapping[int, Value]
    computed: Computed
    layouts: Mapping[int, Strided] = field(default_factory=dict)

    def laid_as_traced(self, position: int, tensor: Any) -> Any:
        """Return a weight with the traced layout: `tensor` itself, or a copy if `tensor` has another layout.

        Dynamo's guards check strides, but not in every version and on every device. Without the copy, a weight replaced
        by a tensor of other strides would be read in the old order.
        """
        t, layout = torch(), self.layouts[position]
        if tensor.stride() == layout.stride:
            return tensor
        if Strided(tuple(tensor.shape), tuple(tensor.stride())).normal.stride == layout.normal.stride:
            return tensor
        copy = t.empty_strided(layout.size, layout.stride, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor.detach())


def extents_of(forward: Any, args: Sequence[Any]) -> Extents:
    """Return the extents of a call by the symbols taken as arguments of the graph."""
    known = {}
    for node, given in zip(placeholders(forward), args, strict=True):
        symbol = getattr(getattr(node.meta["val"], "node", None), "expr", None)
        if getattr(symbol, "is_Symbol", False) and isinstance(given, int):  # ragged extents are no int
            known[symbol] = int(given)
    return known


def capture(
    forward: Any,
    backward: Any | None,
    static: Collection[int],
    extents: Extents,
    device: str = CPU,
    runs_on: str = CPU,
) -> Captured:
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
    conversion = Conversion(where=name, extents=extents, device="" if runs_on == CPU else runs_on)
    level = conversion.root()
    first, weights, layouts = Piece(), {}, dict[int, Strided]()
    stands: list[Any] = []
    for position, node in enumerate(placeholders(forward)):
        fake = node.meta["val"]
        if not hasattr(fake, "stride"):
            stands.append(_number(fake, extents, node.name))
            continue
        _on(device, fake, node.name)
        if position in static and is_dense(fake):
            converted = conversion.weight(node.name, fake)
            weights[position], layouts[position] = converted.value, converted.layout
        else:
            converted = first.given[position] = conversion.given(node.name, fake)
        stands.append(converted)
    results = convert_traced(level, forward, stands)
    names = [getattr(node, "name", None) for node in results_of(forward)]
    _take(level, first, results, dict(enumerate(stands)), _saved(names, backward), sharing=True)
    pieces = [first]
    if backward is not None:
        level.emitter.nodes.append(Node(conversion.names.fresh("cut"), CUT, (), ()))
        known = dict(zip(names, zip(results, first.results, strict=True), strict=True))
        pieces.append(_backward(level, backward, known, device))
    returned = [each for piece in pieces for each in piece.results]
    staying = {each.tensor.value for each in returned if each.tensor is not None and not each.taken}
    level.emitter.nodes[:], computed = computed_for_callers(level.emitter.nodes, staying)
    read = {value for node in level.emitter.nodes for value in reads_inside(node)}
    read |= {each.tensor.value for each in returned if each.tensor is not None and each.argument is None}
    for piece in pieces:  # an unread argument needs no bytes in the arena
        piece.given = {position: each for position, each in piece.given.items() if each.value in read}
    nodes = level.emitter.nodes
    nodes[:] = [node for node in nodes if node.op != GIVE or not read.isdisjoint(node.defs)]
    late = {value for node in nodes if node.op == GIVE for value in node.defs}
    inputs = [each.value for piece in pieces for each in piece.given.values() if each.value not in late]
    graph = level.whole_program(inputs, ())
    own = {value: tensor for value, tensor in conversion.weights.items() if value not in weights.values()}
    return Captured(Model(graph, weights=held(own)), tuple(pieces), weights, computed, layouts)


def _saved(names: Sequence[Any], backward: Any | None) -> set[int]:
    """Return the positions of the results returned by the forward pass only for the backward pass: the last ones."""
    wanted = [node.name for node in placeholders(backward)] if backward is not None else []
    count = sum(name in names for name in wanted)
    return set(range(len(names) - count, len(names)))


def _backward(level: Level, module: Any, known: Mapping[Any, tuple[Any, Result]], device: str) -> Piece:
    """Convert the backward graph after the suspension point, and return the backward pass.

    `known` holds the results of the forward graph by node name.
    """
    piece, stands = Piece(), []
    held: dict[int, Any] = {}
    begin = len(level.emitter.nodes)
    for position, node in enumerate(placeholders(module)):
        if node.name in known:
            stand, result = known[node.name]
            if result.argument is not None:
                again = isinstance(stand, Tensor) and stand.value not in level.conversion.weights and _is_late(level)
                stand = held[position] = _given(level, piece, node, position) if again else stand
        else:
            _on(device, node.meta["val"], node.name)
            stand = held[position] = _given(level, piece, node, position)
        stands.append(stand)
    _take(level, piece, convert_traced(level, module, stands), held, set(), begin)
    return piece


def _is_late(level: Level) -> bool:
    """True if a node of the program copies arguments of the backward pass. On devices the pool copies in advance."""
    return not level.conversion.device


def _given(level: Level, piece: Piece, node: Any, position: int) -> Tensor:
    """Return the tensor of an argument of the backward pass, with a copy-in node if the program copies the argument."""
    tensor = piece.given[position] = level.conversion.given(node.name, node.meta["val"])
    if not _is_late(level):
        return tensor
    attrs = {**encode(Call((), (), (tensor.strides,))), "position": position}
    level.emitter.nodes.append(
        Node(level.conversion.names.fresh(f"give.{node.name}"), GIVE, (), (tensor.value,), attrs)
    )
    return tensor


def _take(
    level: Level,
    piece: Piece,
    results: Any,
    held: Mapping[int, Any],
    saved: set[int],
    begin: int = 0,
    sharing: bool = False,
) -> None:
    """Add the results of a pass, with copy-out nodes right after the definitions, not before node `begin`.

    Args:
        results: converted results by position.
        held: arguments kept by the caller, by position; a result equal to an argument needs no copy.
        saved: positions of results only saved for the backward pass; these stay in the arena.
        begin: position of the first node of the pass.
        sharing: True if results sharing memory in eager PyTorch must share memory; gradients need not.
    """
    arguments = {stand: position for position, stand in held.items() if isinstance(stand, Tensor | Passed)}
    shared = _shared(level, results, arguments, saved) if sharing else {}
    known = _elements_of_arguments(level, results, held, saved, sharing)
    for position, each in enumerate(results):
        if isinstance(each, Tensor | Passed) and each in arguments:
            piece.results.append(Result(each if isinstance(each, Tensor) else None, argument=arguments[each]))
            continue
        if not isinstance(each, Tensor) or position in known:
            piece.results.append(known.get(position, Result(number=each)))
            continue
        home, first = shared.get(position, (each, None))
        taken = position not in saved
        home = level.as_eager(home) if taken and first is None else home
        if taken and first in (None, position):
            attrs = {**encode(Call((home.use(0) if first is None else Use(0),))), "position": position}
            name = level.conversion.names.fresh(f"take.{home.value.name}")
            _after(level, home.value, Node(name, TAKE, (home.value,), (), attrs), begin)
        piece.results.append(Result(home, taken=taken, shared=first))


def _elements_of_arguments(
    level: Level, results: Sequence[Any], held: Mapping[int, Any], saved: set[int], sharing: bool
) -> dict[int, Result]:
    """Return the results viewing arguments, by position; such results need no place.

    With `sharing`, all results of the caller viewing an argument are returned, as the parts of a split argument. A
    saved result viewing an argument other than a weight is returned only if some further saved result lies in the
    arena: the backward pass finds the arena through a saved tensor.
    """
    stands = {each.value: position for position, each in held.items() if isinstance(each, Tensor)}
    homes = {i: level.conversion.home(each) for i, each in enumerate(results) if isinstance(each, Tensor)}
    in_arena = any(homes[i].value not in stands for i in saved if i in homes)
    return {
        i: Result(home, argument=stands[home.value], whole=held[stands[home.value]])
        for i, home in homes.items()
        if home.value in stands and (sharing if i not in saved else in_arena or home.value in level.conversion.weights)
    }


def _shared(
    level: Level, results: Sequence[Any], arguments: Mapping[Any, int], saved: set[int]
) -> dict[int, tuple[Tensor, int | None]]:
    """Return the caller's results sharing one value, by position, each with the first position of the same value.

    Results of a training graph share memory as in inference: two results equal to one tensor, or the parts of a split.
    A result without dense layout, such as an expanded tensor, is also returned as a view of its value, to keep the
    strides of eager PyTorch. Results only `saved` for the backward pass stay in the arena.
    """
    computed = {value for node in level.emitter.nodes for value in node.defs}
    homes: dict[Value, dict[int, Tensor]] = {}
    for position, each in enumerate(results):
        if isinstance(each, Tensor) and each not in arguments and position not in saved:
            home = level.conversion.home(each)
            if home.value in computed:
                homes.setdefault(home.value, {})[position] = home
    together = (
        positions
        for positions in homes.values()
        if len(positions) > 1 or not all(home.layout.is_dense for home in positions.values())
    )
    return {position: (home, min(positions)) for positions in together for position, home in positions.items()}


def _after(level: Level, value: Value, node: Node, begin: int) -> None:
    """Insert a node right after the definition of `value`, to end the live range there; not before node `begin`."""
    nodes = level.emitter.nodes
    definition = next((i for i, other in enumerate(nodes) if value in other.defs), len(nodes) - 1)
    nodes.insert(max(definition + 1, begin), node)


def _number(fake: Any, extents: Extents, name: str) -> Any:
    """Return a number with known extents substituted, or an `OpaqueArgument` for any other non-tensor argument."""
    numbers = (bool, int, float, torch().SymInt, torch().SymFloat, torch().SymBool)
    return fixed(fake, extents, name) if isinstance(fake, numbers) else Passed(name)


def _on(device: str, fake: Any, name: str) -> None:
    """Raise ModelError if a traced tensor lies on a device of another type."""
    if fake.device.type != device.partition(":")[0]:
        raise ModelError(f"{name}: a tensor on {fake.device}, in a graph on {device}")
