"""A pool of arenas on a device. Each arena is one PyTorch tensor of bytes; PyTorch's own operators compute in the
arena.

Forward and backward share one plan, and each call in flight leases an arena, see `arena_pool.py`. A recorder records
each segment of calls without a decision in between, including each body version of a loop, and replays the segments.
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
"""Bytes. Device kernels read up to 16 bytes at once, so tensors begin at multiples of 16."""


@dataclass(eq=False)
class DeviceArena:
    """An arena on a device with a program bound to the arena.

    results           for each pass the results by position
    pass_calls        the calls of each pass
    argument_places   for each pass the places of copied arguments, by position
    weight_addresses  the address of each bound weight, by position
    streams           orders the calls of different streams in the arena
    """

    memory: DeviceMemory
    taken: list[dict[int, Any]]
    pieces: list[tuple[Call, ...]] = field(default_factory=list)
    places: list[dict[int, Any]] = field(default_factory=list)
    bound: dict[int, int] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    def is_bound_to(self, args: Sequence[Any]) -> bool:
        """True if the program reads each weight of `args` at the current address."""
        return all(args[position].data_ptr() == address for position, address in self.bound.items())


class DevicePool:
    """Pool of arenas for one captured program on a device, with the interface of `ArenaPool`.

    With a `recorder`, results are computed in tensors reused by every run, and copied for the caller.

    Raises ModelError for an alignment not a multiple of `DEVICE_ALIGNMENT`.
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
        """Return the lease of an arena without another call, see `ArenaPool.lease`."""
        with self._lock:
            bound = (i for i, each in enumerate(self._free) if args and each.is_bound_to(args))
            arena = self._free.pop(next(bound, -1)) if self._free else self._made()
        return Flight(self, arena)

    def release(self, arena: DeviceArena) -> None:
        """Return an arena to the free arenas."""
        self._free.append(arena)

    def _made(self) -> DeviceArena:
        """Return a new arena with the constants of the program."""
        memory = DeviceMemory(self.captured.model.graph, self.plan, self._device)
        for value in self.captured.model.graph.weights:
            content = self.captured.model.weights.get(value.name)
            if content is not None or value.literal is not None:
                memory.use(bound_to(value.name), self._constant(value, content))
        return DeviceArena(memory, [{} for _ in self.captured.pieces])

    def _constant(self, value: Value, content: Any) -> Any:
        """Return the tensor of a constant of the program: a dense tensor, or a few numbers on the device."""
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
        """Run a pass and return the results by position, None for tensors in the arena; see `ArenaPool.run_pass`."""
        if number == 0:
            self._bind(arena, args)
        arena.turns.take(self._device, (*map(arena.memory.raw, arena.memory.arenas), *arena.taken[number].values()))
        for position, place in arena.places[number].items():
            place.copy_(args[position])
        try:
            for call in arena.pieces[number]:
                call()
        except KernelError as error:  # raise the error of the eager operator
            raise (error.__cause__ or error) from None
        taken = self._given(arena.taken[number])
        taken.update({position: place.copy_(taken[position]) for position, place in (into or {}).items()})
        results = self.captured.pieces[number].results
        return [_result(result, position, args, taken) for position, result in enumerate(results)]

    def _given(self, taken: dict[int, Any]) -> dict[int, Any]:
        """Return the results of a run as the caller's own tensors.

        Results of recorded calls are copied: the next run overwrites the tensors of the recording.
        """
        if self._recorder is not None:
            return {position: tensor.clone() for position, tensor in taken.items()}
        results = dict(taken)
        taken.clear()
        return results

    def _bind(self, arena: DeviceArena, args: Sequence[Any]) -> None:
        """Build the program over the current weights: in a new arena, and after a weight has moved."""
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
        """Return the calls of the program, recorded in segments if the pool has a recorder."""
        graph, memory, staying = self.captured.model.graph, arena.memory, self._recorder is not None
        takes = _Takes(self.captured.computed, self._piece_of, arena.taken, self._device, staying)
        kernels = choose_kernels(graph, [takes, Cuts(), OnDevice()], {})
        recorder = None if self._recorder is None else self._recorder(self._device)

        def bind(node: Node, places: Places) -> Call:
            call = bind_node(node, places, kernels)
            if call is nothing or (node.op in (TAKE, COMPUTE) and not staying):
                return call
            moving = any(memory.strides(value, places.context) for value in (*node.uses, *node.defs))
            return Part(call, None if moving else recorder)  # calls with addresses moving by iteration stay unrecorded

        return build(graph, self.plan.schedule, memory, bind, None)

    def kept(self, flight: Flight) -> list[tuple[int, Any]]:
        """Return tensors over the saved tensors in the arena, by position, each with a reference to the lease."""
        saved = []
        for position, result in enumerate(self.captured.pieces[0].results):
            if result.tensor is not None and result.argument is None and not result.taken:
                tensor = _over(flight.arena, result.tensor)
                tensor.flight = flight
                saved.append((position, tensor))
        return saved


def _pieces_of(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the pass number of each node of the root level, by node name."""
    numbers, piece = {}, 0
    for node in nodes:
        piece += node.op == CUT
        numbers[node.name] = piece
    return numbers


def _over(arena: DeviceArena, tensor: Tensor) -> Any:
    """Return a PyTorch tensor over the bytes of `tensor` in the arena."""
    region = arena.memory.here().region(tensor.value) if tensor.value.nbytes else None
    return arena.memory.tensor(region, tensor.spec, tensor.layout)


def _result(result: Result, position: int, args: Sequence[Any], taken: Mapping[int, Any]) -> Any:
    """Return one result: a view of a shared result, a result in the caller's memory, or an argument."""
    if result.shared is not None and result.tensor is not None:
        return seen(taken[result.shared].detach(), result.tensor.strides)
    if result.taken:
        return taken[position]
    return result.of(args)


@dataclass(frozen=True)
class _Takes:
    """The backend of copy-out and compute-out nodes on a device, see `caller_outputs.py`.

    With `keeps_tensors`, as required for recorded calls, every run writes the same result tensors.
    """

    computed: Computed
    piece_of: Mapping[str, int]
    taken: Sequence[dict[int, Any]]
    device: str
    stays: bool
    name: str = "take"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of a copy-out or compute-out node; None for any other node."""
        if node.op not in (TAKE, COMPUTE):
            return None
        made, take = self.computed[node.name] if node.op == COMPUTE else (None, node)
        return _Taken(self, self.taken[self.piece_of[node.name]], take, made)


@dataclass(frozen=True)
class _Taken:
    """Copies a result to a new tensor of the caller, or computes node `computed` directly in the tensor."""

    takes: _Takes
    taken: dict[int, Any]
    take: Node
    made: Node | None
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call writing the same tensor in each run with `keeps_tensors`, else a new tensor."""
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
        """Return a new tensor for the caller, and the call to fill the tensor."""
        (use,) = decode(self.take).uses()
        if self.made is None:
            source: Any = seen(inputs[0], use.layout)
            place = torch().empty_like(source)
            return place, lambda: place.copy_(source)
        spec = spec_of(self.made.defs[0])
        place = torch().empty(spec.shape, dtype=getattr(torch(), torch_name(spec.dtype)), device=self.takes.device)
        return seen(place, use.layout), DeviceKernel(self.made).bind(inputs, [place], None)
