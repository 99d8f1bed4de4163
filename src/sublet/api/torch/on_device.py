"""Arenas on a device: each is one tensor of PyTorch's there, in which PyTorch's own operators compute.

Forward and backward are one plan; calls in flight have arenas of their own, see `flights.py`. With a recorder each
stretch of calls with nothing to decide in between, so also each copy of a loop's body, is recorded once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.analysis.options import Options
from sublet.api.torch.captured import Captured, Result
from sublet.api.torch.cuda import Turns
from sublet.api.torch.flights import Flight
from sublet.api.torch.taking import COMPUTE, TAKE, Computed
from sublet.base.arrays import torch_name
from sublet.base.errors import KernelError, ModelError
from sublet.base.forks import fork_lock
from sublet.frontends.torch.exported import Held
from sublet.frontends.torch.tensors import Tensor, torch
from sublet.ir.graph import Node, Value
from sublet.ops.aten import PREFIX, Strided, decode
from sublet.ops.nn.command import spec_of
from sublet.plan import MemoryPlan, bound_to
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends.torch.backend import DeviceKernel, DeviceMemory, OnDevice, Part, Recorder, seen
from sublet.runtime.calls import nothing
from sublet.runtime.cuts import CUT, Cuts
from sublet.runtime.kernel import Array, Call, Kernel, Operand
from sublet.runtime.kernels import bind_node, choose_kernels
from sublet.runtime.memory import Places
from sublet.runtime.pieces import between_cuts
from sublet.runtime.program import build

ALIGNED = 16
"""Bytes that a device's kernels read at once: tensors begin at multiples of it."""


@dataclass(eq=False)
class DeviceArena:
    """One arena with the program bound to it.

    taken   for each piece what a run of it gives, by position
    pieces  the calls of each piece
    places  for each piece where what it is given goes, by position
    bound   where the weights are, by position
    """

    memory: DeviceMemory
    taken: list[dict[int, Any]]
    pieces: list[tuple[Call, ...]] = field(default_factory=list)
    places: list[dict[int, Any]] = field(default_factory=list)
    bound: dict[int, int] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    def is_bound_to(self, args: Sequence[Any]) -> bool:
        """True if the program reads the weights where they are in these arguments."""
        return all(args[position].data_ptr() == address for position, address in self.bound.items())


class DevicePool:
    """The arenas of one captured program on a device, all of one plan; see `flights.Pool`.

    With a `recorder` what a run gives is computed in tensors that stay, and copied for the caller.
    Raises ModelError for an alignment that kernels there cannot work with.
    """

    def __init__(
        self, captured: Captured, options: Options, device: str, recorder: Callable[[str], Recorder] | None = None
    ) -> None:
        if options.alignment % ALIGNED:
            raise ModelError(f"alignment {options.alignment} on {device}: kernels there need a multiple of {ALIGNED}")
        self.captured, self._device, self._recorder = captured, device, recorder
        self.plan: MemoryPlan = plan_memory(captured.model, options)
        graph = captured.model.graph
        calls = (node for node in graph.walk() if node.op.startswith(PREFIX))
        self.copied = tuple((node.op, nbytes) for node in calls if (nbytes := DeviceKernel(node).allocates))
        self._piece_of = _pieces_of(graph.nodes)
        self._lock = fork_lock()
        self._free: list[DeviceArena] = []

    def take(self, args: Sequence[Any] = ()) -> Flight:
        """Return a call in an arena that no other call is in; see `flights.Pool.take`."""
        with self._lock:
            bound = (i for i, each in enumerate(self._free) if args and each.is_bound_to(args))
            arena = self._free.pop(next(bound, -1)) if self._free else self._made()
        return Flight(self, arena)

    def release(self, arena: DeviceArena) -> None:
        """The arena is free for another call."""
        self._free.append(arena)

    def _made(self) -> DeviceArena:
        memory = DeviceMemory(self.captured.model.graph, self.plan, self._device)
        for value in self.captured.model.graph.weights:
            content = self.captured.model.weights.get(value.name)
            if content is not None or value.literal is not None:
                memory.use(bound_to(value.name), self._constant(value, content))
        return DeviceArena(memory, [{} for _ in self.captured.pieces])

    def _constant(self, value: Value, content: Any) -> Any:
        """What the program itself holds: a tensor that lies in a row, or a few numbers."""
        spec = spec_of(value)
        with torch().inference_mode(False):
            if isinstance(content, Held):
                layout = Strided(tuple(content.tensor.shape), tuple(content.tensor.stride()))
                return content.tensor.detach() if layout.is_dense else content.tensor.detach().contiguous()
            dtype = getattr(torch(), torch_name(spec.dtype))
            return torch().tensor(value.literal, dtype=dtype, device=self._device)

    def run(
        self, arena: DeviceArena, number: int, args: Sequence[Any], into: Mapping[int, Any] | None = None
    ) -> list[Any]:
        """Run one piece with these arguments; what it gives, None for what stays in the arena; see `flights.Pool`."""
        if number == 0:
            self._bind(arena, args)
        arena.turns.take(self._device, (*map(arena.memory.raw, arena.memory.arenas), *arena.taken[number].values()))
        for position, place in arena.places[number].items():
            place.copy_(args[position])
        try:
            for call in arena.pieces[number]:
                call()
        except KernelError as error:  # who calls knows what PyTorch's operators raise
            raise (error.__cause__ or error) from None
        taken = self._given(arena.taken[number])
        taken.update({position: place.copy_(taken[position]) for position, place in (into or {}).items()})
        results = self.captured.pieces[number].results
        return [_result(result, position, args, taken) for position, result in enumerate(results)]

    def _given(self, taken: dict[int, Any]) -> dict[int, Any]:
        """What a run gave as the caller's own: what is recorded is written again by the next run."""
        if self._recorder is not None:
            return {position: tensor.clone() for position, tensor in taken.items()}
        found = dict(taken)
        taken.clear()
        return found

    def _bind(self, arena: DeviceArena, args: Sequence[Any]) -> None:
        """The program over weights where they are now, if that is elsewhere than at the last call."""
        given = {at: self.captured.laid_as_traced(at, args[at]) for at in self.captured.weights}
        addresses = {position: tensor.data_ptr() for position, tensor in given.items()}
        if arena.pieces and addresses == arena.bound:
            return
        for position, value in self.captured.weights.items():
            arena.memory.use(bound_to(value.name), given[position])
        arena.taken = [{} for _ in self.captured.pieces]
        arena.pieces = between_cuts(self._program(arena))
        arena.places = [{at: _over(arena, each) for at, each in p.given.items()} for p in self.captured.pieces]
        arena.bound = addresses

    def _program(self, arena: DeviceArena) -> Any:
        graph, memory, staying = self.captured.model.graph, arena.memory, self._recorder is not None
        takes = _Takes(self.captured.computed, self._piece_of, arena.taken, self._device, staying)
        kernels = choose_kernels(graph, [takes, Cuts(), OnDevice()], {})
        recorder = None if self._recorder is None else self._recorder(self._device)

        def bind(node: Node, places: Places) -> Call:
            call = bind_node(node, places, kernels)
            if call is nothing or (node.op in (TAKE, COMPUTE) and not staying):
                return call
            moving = any(memory.strides(value, places.context) for value in (*node.uses, *node.defs))
            return Part(call, None if moving else recorder)  # what moves from round to round is bound in each

        return build(graph, self.plan.schedule, memory, bind, None)

    def kept(self, flight: Flight) -> list[tuple[int, Any]]:
        """Tensors over what stays in the arena after the first piece, by position; they hold the flight."""
        found = []
        for position, result in enumerate(self.captured.pieces[0].results):
            if result.tensor is not None and result.argument is None and not result.taken:
                tensor = _over(flight.arena, result.tensor)
                tensor.flight = flight
                found.append((position, tensor))
        return found


def _pieces_of(nodes: Sequence[Node]) -> dict[str, int]:
    """By name of a node of the root level the piece that it is in."""
    found, piece = {}, 0
    for node in nodes:
        piece += node.op == CUT
        found[node.name] = piece
    return found


def _over(arena: DeviceArena, tensor: Tensor) -> Any:
    """A tensor of PyTorch's over its bytes in the arena."""
    region = arena.memory.here().region(tensor.value) if tensor.value.nbytes else None
    return arena.memory.tensor(region, tensor.spec, tensor.layout)


def _result(result: Result, position: int, args: Sequence[Any], taken: Mapping[int, Any]) -> Any:
    if result.shared is not None and result.tensor is not None:
        return seen(taken[result.shared].detach(), result.tensor.strides)
    if result.taken:
        return taken[position]
    return result.of(args)


@dataclass(frozen=True)
class _Takes:
    """The backend of nodes that give what callers get, see `taking.py`; what they give `stays` where it is recorded."""

    computed: Computed
    piece_of: Mapping[str, int]
    taken: Sequence[dict[int, Any]]
    device: str
    stays: bool
    name: str = "take"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Gives tensors that lie as the value is seen."""
        if node.op not in (TAKE, COMPUTE):
            return None
        made, take = self.computed[node.name] if node.op == COMPUTE else (None, node)
        return _Taken(self, self.taken[self.piece_of[node.name]], take, made)


@dataclass(frozen=True)
class _Taken:
    """Gives a copy of what is computed, or computes there itself what `made` does."""

    takes: _Takes
    taken: dict[int, Any]
    take: Node
    made: Node | None
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """With `stays` the place is the same in each run, else a new one."""
        position = self.take.attrs["position"]
        assert isinstance(position, int)
        if self.takes.stays:
            with torch().inference_mode(False):
                self.taken[position], call = self._placed(inputs)
            return call

        def give() -> None:
            tensor, call = self._placed(inputs)
            with torch().inference_mode():
                call()
            self.taken[position] = tensor

        return give

    def _placed(self, inputs: Sequence[Operand | None]) -> tuple[Any, Call]:
        """A new tensor for the caller, and the call that fills it."""
        (use,) = decode(self.take).uses()
        if self.made is None:
            source: Any = seen(inputs[0], use.layout)
            place = torch().empty_like(source)
            return place, lambda: place.copy_(source)
        spec = spec_of(self.made.defs[0])
        place = torch().empty(spec.shape, dtype=getattr(torch(), torch_name(spec.dtype)), device=self.takes.device)
        return seen(place, use.layout), DeviceKernel(self.made).bind(inputs, [place], None)
