"""Graphs that AOTAutograd captured, as one model: forward, a cut, backward. What a caller gets is taken as it comes.

Parameters and buffers are weights of the model, in their own memory; everything else that a call is given is copied
into the arena, where it has no place before. What the backward reads of the forward stays where it is between the two
calls; what the forward was given, the backward is given again.
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
    """What a call gives at one position: a tensor that is computed, an argument by its position, or a number.

    taken   it is the caller's own, and does not stay in the arena
    shared  it is elements of what is taken at this position, as other results are
    whole   the argument that the tensor is elements of; None where it is all of it

    Of f(x, n), where a backward reads `a`:

        x + 1         tensor, taken
        (x + 1)[0]    tensor, shared: the position of x + 1, which is given too
        a             tensor: it stays in the arena
        x             argument: 0
        x[0]          argument: 0, tensor: x[0], whole: x
        n + 1         number, known where graphs are captured for each n
    """

    tensor: Tensor | None = None
    argument: int | None = None
    number: Any = None
    taken: bool = False
    shared: int | None = None
    whole: Tensor | None = None

    def of(self, args: Sequence[Any]) -> Any:
        """The argument, or its elements."""
        if self.argument is None:
            return self.number
        if self.whole is None or self.tensor is None:
            return args[self.argument]
        return elements(args[self.argument], self.whole, self.tensor)


def elements(given: Any, whole: Tensor, part: Tensor) -> Any:
    """Elements of a tensor that is given: `part` of the same value as `whole`, which is how it was traced.

    A tensor that lies otherwise is copied.
    """
    t, layout = torch(), whole.layout
    lies = Strided(tuple(given.shape), tuple(given.stride())).normal == layout.normal
    if not lies:
        given = t.empty_strided(layout.size, layout.stride, dtype=given.dtype, device=given.device).copy_(given)
    seen = part.layout
    return given.as_strided(seen.size, seen.stride, given.storage_offset() + seen.offset - layout.offset)


@dataclass(frozen=True, eq=False)
class Passed:
    """An argument that is no tensor and no number, such as a mesh of devices: it may be handed on."""

    name: str


@dataclass
class Piece:
    """One of the two calls.

    given    its tensors by position that are copied into the arena: those of the first before it begins
    results  what it gives
    """

    given: dict[int, Tensor] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)


@dataclass(frozen=True)
class Captured:
    """A captured program.

    weights   the arguments of the first piece that are weights, by position: their contents come with the first call
    layouts   how the elements of these lay when the program was traced, which its kernels count on
    """

    model: Model
    pieces: tuple[Piece, ...]
    weights: Mapping[int, Value]
    computed: Computed
    layouts: Mapping[int, Strided] = field(default_factory=dict)

    def laid_as_traced(self, position: int, tensor: Any) -> Any:
        """Return a weight that lies as it was traced: the tensor itself, or a copy of a tensor that lies otherwise.

        Dynamo's guards hold strides, but not of every version on every device: a weight that was replaced by one of
        other strides would be read as if its bytes were in the old order.
        """
        t, layout = torch(), self.layouts[position]
        if tensor.stride() == layout.stride:
            return tensor
        if Strided(tuple(tensor.shape), tuple(tensor.stride())).normal.stride == layout.normal.stride:
            return tensor
        made = t.empty_strided(layout.size, layout.stride, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor.detach())


def extents_of(forward: Any, args: Sequence[Any]) -> Extents:
    """What the symbols that a graph takes as arguments stand for in a call."""
    found = {}
    for node, given in zip(placeholders(forward), args, strict=True):
        symbol = getattr(getattr(node.meta["val"], "node", None), "expr", None)
        if getattr(symbol, "is_Symbol", False) and isinstance(given, int):  # extents of ragged tensors are none
            found[symbol] = int(given)
    return found


def capture(
    forward: Any,
    backward: Any | None,
    static: Collection[int],
    extents: Extents,
    device: str = CPU,
    runs_on: str = CPU,
) -> Captured:
    """Forward and, if there is one, backward as a model; `static` are the positions of parameters and buffers.
    With `extents` it is the program for arguments of these shapes. Its tensors lie on `device`; it is to be run on
    another one where these only stand for tensors there.

    Raises ModelError for what cannot be planned.
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
            made = conversion.weight(node.name, fake)
            weights[position], layouts[position] = made.value, made.layout
        else:
            made = first.given[position] = conversion.given(node.name, fake)
        stands.append(made)
    results = convert_traced(level, forward, stands)
    names = [getattr(node, "name", None) for node in results_of(forward)]
    _take(level, first, results, dict(enumerate(stands)), _saved(names, backward), sharing=True)
    pieces = [first]
    if backward is not None:
        level.emitter.nodes.append(Node(conversion.names.fresh("cut"), CUT, (), ()))
        known = dict(zip(names, zip(results, first.results, strict=True), strict=True))
        pieces.append(_backward(level, backward, known, device))
    results = [each for piece in pieces for each in piece.results]
    staying = {each.tensor.value for each in results if each.tensor is not None and not each.taken}
    level.emitter.nodes[:], computed = computed_for_callers(level.emitter.nodes, staying)
    read = {value for node in level.emitter.nodes for value in reads_inside(node)}
    read |= {each.tensor.value for each in results if each.tensor is not None and each.argument is None}
    for piece in pieces:  # what nobody reads has no bytes of its own, least of all when the second call begins
        piece.given = {position: each for position, each in piece.given.items() if each.value in read}
    nodes = level.emitter.nodes
    nodes[:] = [node for node in nodes if node.op != GIVE or not read.isdisjoint(node.defs)]
    late = {value for node in nodes if node.op == GIVE for value in node.defs}
    inputs = [each.value for piece in pieces for each in piece.given.values() if each.value not in late]
    graph = level.whole_program(inputs, ())
    own = {value: tensor for value, tensor in conversion.weights.items() if value not in weights.values()}
    return Captured(Model(graph, weights=held(own)), tuple(pieces), weights, computed, layouts)


def _saved(names: Sequence[Any], backward: Any | None) -> set[int]:
    """The positions of what is only kept for the backward: as many at the end as that takes of the forward's."""
    wanted = [node.name for node in placeholders(backward)] if backward is not None else []
    count = sum(name in names for name in wanted)
    return set(range(len(names) - count, len(names)))


def _backward(level: Level, module: Any, known: Mapping[Any, tuple[Any, Result]], device: str) -> Piece:
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
    """Whether what the second call is given is copied as it runs: on other devices that comes before."""
    return not level.conversion.device


def _given(level: Level, piece: Piece, node: Any, position: int) -> Tensor:
    """What the second call is given at a position, which gets its place then."""
    made = piece.given[position] = level.conversion.given(node.name, node.meta["val"])
    if not _is_late(level):
        return made
    attrs = {**encode(Call((), (), (made.strides,))), "position": position}
    level.emitter.nodes.append(Node(level.conversion.names.fresh(f"give.{node.name}"), GIVE, (), (made.value,), attrs))
    return made


def _take(
    level: Level,
    piece: Piece,
    results: Any,
    held: Mapping[int, Any],
    saved: set[int],
    begin: int = 0,
    sharing: bool = False,
) -> None:
    """Results go to the caller where they are computed, in the piece from node `begin` on.

    Those that are arguments which the caller holds (`held`, by position) are these; those that are only kept (`saved`)
    stay in the arena, but for elements of arguments. With `sharing`, results that are the same memory eagerly are the
    same memory here; gradients never need be.
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
    """Return the results, by position, that are elements of arguments and need no place.

    With `sharing` these are all results of the caller's, as the parts of an argument that is split. What is only
    `saved`, and is elements of another argument than a weight, needs no place only where something else is saved, by
    which the backward finds its arena.
    """
    stands = {each.value: position for position, each in held.items() if isinstance(each, Tensor)}
    homes = {i: level.conversion.home(each) for i, each in enumerate(results) if isinstance(each, Tensor)}
    found = any(homes[i].value not in stands for i in saved if i in homes)
    return {
        i: Result(home, argument=stands[home.value], whole=held[stands[home.value]])
        for i, home in homes.items()
        if home.value in stands and (sharing if i not in saved else found or home.value in level.conversion.weights)
    }


def _shared(
    level: Level, results: Sequence[Any], arguments: Mapping[Any, int], saved: set[int]
) -> dict[int, tuple[Tensor, int | None]]:
    """Return the results of the caller's that are elements of one value, by position, and the first of their positions.

    A training's results share memory as an inference's do: two results that are one tensor, and the parts of a split.
    A result that is no run of bytes, as an expanded one, is elements of its value too, so that its steps are eager's.
    What is only `saved` for the backward stays in the arena.
    """
    computed = {value for node in level.emitter.nodes for value in node.defs}
    homes: dict[Value, dict[int, Tensor]] = {}
    for position, each in enumerate(results):
        if isinstance(each, Tensor) and each not in arguments and position not in saved:
            home = level.conversion.home(each)
            if home.value in computed:
                homes.setdefault(home.value, {})[position] = home
    together = (
        all_ for all_ in homes.values() if len(all_) > 1 or not all(home.layout.is_dense for home in all_.values())
    )
    return {position: (home, min(all_)) for all_ in together for position, home in all_.items()}


def _after(level: Level, value: Value, node: Node, begin: int) -> None:
    """Put a node right behind the one that gives a value, so that nothing is kept for it."""
    nodes = level.emitter.nodes
    made = next((i for i, other in enumerate(nodes) if value in other.defs), len(nodes) - 1)
    nodes.insert(max(made + 1, begin), node)


def _number(fake: Any, extents: Extents, name: str) -> Any:
    """An argument that is no tensor."""
    numbers = (bool, int, float, torch().SymInt, torch().SymFloat, torch().SymBool)
    return fixed(fake, extents, name) if isinstance(fake, numbers) else Passed(name)


def _on(device: str, fake: Any, name: str) -> None:
    if fake.device.type != device.partition(":")[0]:
        raise ModelError(f"{name}: a tensor on {fake.device}, in a graph on {device}")
