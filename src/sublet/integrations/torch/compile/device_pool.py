"""A pool of arenas on a device. Each arena is one PyTorch tensor of bytes; PyTorch's own operators compute in the
arena.

Forward and backward share one plan, and each call in flight leases an arena, see `arena_pool.py`. A recorder records
each segment of calls without a decision in between, including each body version of a loop, and replays the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sublet.analysis.options import Options
from sublet.base.arrays import torch_name
from sublet.base.errors import KernelError, ModelError, RunError
from sublet.base.interrupts import fork_lock
from sublet.integrations.torch.compile.arena_pool import plan_within
from sublet.integrations.torch.compile.caller_outputs import COMPUTE_OUT, COPY_OUT, ComputedOutputs
from sublet.integrations.torch.compile.joint_graph import CallResult, CapturedProgram, PassValue
from sublet.integrations.torch.compile.shared_scratch import ArenaLease
from sublet.integrations.torch.dialect import PREFIX, StridedLayout, decode
from sublet.integrations.torch.kernels.backend import (
    CallRecorder,
    DeviceBackend,
    DeviceKernel,
    DeviceMemory,
    SegmentCall,
    strided_tensor,
)
from sublet.integrations.torch.reader.exported_program import TorchContent
from sublet.integrations.torch.reader.traced_tensor import TracedTensor, torch
from sublet.ir.graph import Node, Value
from sublet.ir.model import Constant
from sublet.ops.nn.command import spec_of
from sublet.ops.op import SUSPEND
from sublet.plan import bound_storage_name
from sublet.runtime.kernel import Array, Call, Kernel, Operand, no_op
from sublet.runtime.kernel_choice import bind_node, choose_kernels
from sublet.runtime.memory import ValuePlaces
from sublet.runtime.program import BoundProgram, build_program
from sublet.runtime.resumable import SuspensionBackend, calls_between_suspensions

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Stream

# The use of `torch.cuda`: recorded and replayed CUDA graphs, and the order of streams sharing an arena.
#
# Tested on a GPU by `make gpu`, see docs/torch.md.

CUDA = "cuda"


class CudaGraphs:
    """Records calls as CUDA graphs.

    All graphs share one memory pool for tensors allocated by operators. The graphs run one after another and keep no
    data in the pool from one graph to the next.
    """

    def __init__(self, device: str) -> None:
        self._device = torch().device(device)
        self._stream = self._pool = None

    def record(self, call: Call) -> Call:
        """Capture a call as a CUDA graph, replay the graph once, and return the replay: a capture runs no kernel.

        Raises RunError for a call without a possible capture.
        """
        cuda = torch().cuda
        with torch().inference_mode(False), torch().no_grad(), cuda.device(self._device):
            self._stream = self._stream or cuda.Stream()
            self._pool = self._pool or cuda.graph_pool_handle()
            graph = cuda.CUDAGraph()
            try:
                with cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    call()
            except RuntimeError as error:
                words = str(error).splitlines()[0]
                raise RunError(f"cannot be captured as a CUDA graph: {words}: leave options['graphs'] out") from error
        replay: Call = graph.replay
        replay()
        return replay


class StreamOrder:
    """Orders the calls in an arena. Each call runs on the stream current at the start of the call."""

    def __init__(self) -> None:
        self._last: Stream | None = None

    def wait_for_previous(self, device: str, tensors: Iterable[Tensor]) -> None:
        """Let the current stream wait for all work of the previous stream in the arena.

        `tensors` are recorded on the current stream: PyTorch's allocator must not reuse their memory before the stream
        is done. No effect on devices other than CUDA.
        """
        if not device.startswith(CUDA):
            return
        now = torch().cuda.current_stream(device)
        if self._last is not None and now != self._last:
            now.wait_stream(self._last)
            for each in tensors:
                each.record_stream(now)
        self._last = now


DEVICE_ALIGNMENT = 16
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
    results: list[dict[int, Tensor]]
    pass_calls: list[tuple[Call, ...]] = field(default_factory=list)
    argument_places: list[dict[int, Tensor]] = field(default_factory=list)
    weight_addresses: dict[int, int] = field(default_factory=dict)
    streams: StreamOrder = field(default_factory=StreamOrder)

    @property
    def exclusive_scratch(self) -> AbstractContextManager[object]:
        """A context manager without effect: the arena shares no bytes."""
        return nullcontext()

    def is_bound_to(self, args: Sequence[PassValue]) -> bool:
        """True if the program reads each weight of `args` at the current address."""
        return all(args[position].data_ptr() == address for position, address in self.weight_addresses.items())


class DevicePool:
    """Pool of arenas for one captured program on a device, a `CapturedGraphPool`.

    With a `recorder`, results are computed in tensors reused by every run, and copied for the caller.

    Raises ModelError for an alignment not a multiple of `DEVICE_ALIGNMENT`.
    """

    def __init__(
        self,
        captured: CapturedProgram,
        options: Options,
        device: str,
        recorder: Callable[[str], CallRecorder] | None = None,
        budget: int | None = None,
    ) -> None:
        if options.alignment % DEVICE_ALIGNMENT:
            raise ModelError(
                f"alignment {options.alignment} on {device}: kernels there need a multiple of {DEVICE_ALIGNMENT}"
            )
        self._device, self._recorder = device, recorder
        self.captured, self.plan = plan_within(captured, options, budget, lambda program: program.model)
        graph = self.captured.model.graph
        calls = (node for node in graph.walk() if node.op.startswith(PREFIX))
        self.allocations = tuple((node.op, nbytes) for node in calls if (nbytes := DeviceKernel(node).allocates))
        self._pass_of = _pass_numbers(graph.nodes)
        self._lock = fork_lock()
        self._free: list[DeviceArena] = []

    def lease(self, args: Sequence[PassValue] = ()) -> ArenaLease:
        """Return the lease of an arena without another call, see `ArenaPool.lease`."""
        with self._lock:
            bound = (i for i, each in enumerate(self._free) if args and each.is_bound_to(args))
            arena = self._free.pop(next(bound, -1)) if self._free else self._new_arena()
        return ArenaLease(self, arena)

    def release(self, arena: DeviceArena) -> None:
        """Return an arena to the free arenas."""
        self._free.append(arena)

    def _new_arena(self) -> DeviceArena:
        """Return a new arena with the constants of the program."""
        memory = DeviceMemory(self.captured.model.graph, self.plan, self._device)
        for value in self.captured.model.graph.weights:
            content = self.captured.model.weights.get(value.name)
            if content is not None or value.literal is not None:
                memory.bind_storage(bound_storage_name(value.name), self._constant_tensor(value, content))
        return DeviceArena(memory, [{} for _ in self.captured.passes])

    def _constant_tensor(self, value: Value, content: Constant | None) -> Tensor:
        """Return the tensor of a constant of the program: a dense tensor, or a few numbers on the device."""
        spec = spec_of(value)
        with torch().inference_mode(False):
            if isinstance(content, TorchContent):
                layout = StridedLayout(tuple(content.tensor.shape), tuple(content.tensor.stride()))
                tensor: Tensor = content.tensor.detach()
                return tensor if layout.is_dense else tensor.contiguous()
            dtype = getattr(torch(), torch_name(spec.dtype))
            numbers: Tensor = torch().tensor(value.literal, dtype=dtype, device=self._device)
            return numbers

    def run_pass(
        self, arena: DeviceArena, number: int, args: Sequence[PassValue], into: Mapping[int, Tensor] | None = None
    ) -> list[PassValue]:
        """Run a pass and return the results by position, None for tensors in the arena; see `ArenaPool.run_pass`."""
        if number == 0:
            self._rebind_weights(arena, args)
        arena.streams.wait_for_previous(
            self._device, (*map(arena.memory.raw, arena.memory.arenas), *arena.results[number].values())
        )
        for position, place in arena.argument_places[number].items():
            place.copy_(args[position])
        try:
            for call in arena.pass_calls[number]:
                call()
        except KernelError as error:  # raise the error of the eager operator
            raise (error.__cause__ or error) from None
        taken = self._results_of_caller(arena.results[number])
        taken.update({position: place.copy_(taken[position]) for position, place in (into or {}).items()})
        return self.captured.passes[number].resolve_results(args, taken)

    def _results_of_caller(self, taken: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the results of a run as the caller's own tensors.

        Results of recorded calls are copied: the next run overwrites the tensors of the recording.
        """
        if self._recorder is not None:
            return {position: tensor.clone() for position, tensor in taken.items()}
        results = dict(taken)
        taken.clear()
        return results

    def _rebind_weights(self, arena: DeviceArena, args: Sequence[PassValue]) -> None:
        """Build the program over the current weights: in a new arena, and after a weight has moved."""
        given = {at: self.captured.weight_as_traced(at, args[at]) for at in self.captured.weights}
        addresses = {position: tensor.data_ptr() for position, tensor in given.items()}
        if arena.pass_calls and addresses == arena.weight_addresses:
            return
        for position, value in self.captured.weights.items():
            arena.memory.bind_storage(bound_storage_name(value.name), given[position])
        arena.results = [{} for _ in self.captured.passes]
        arena.pass_calls = calls_between_suspensions(self._build_calls(arena))
        arena.argument_places = [
            {at: _tensor_in_arena(arena, each) for at, each in p.arguments.items()} for p in self.captured.passes
        ]
        arena.weight_addresses = addresses

    def _build_calls(self, arena: DeviceArena) -> BoundProgram:
        """Return the calls of the program, recorded in segments if the pool has a recorder."""
        graph, memory, staying = self.captured.model.graph, arena.memory, self._recorder is not None
        takes = _DeviceOutputs(self.captured.computed, self._pass_of, arena.results, self._device, staying)
        kernels = choose_kernels(graph, [takes, SuspensionBackend(), DeviceBackend()], {})
        recorder = None if self._recorder is None else self._recorder(self._device)

        def bind(node: Node, places: ValuePlaces) -> Call:
            call = bind_node(node, places, kernels)
            if call is no_op or (node.op in (COPY_OUT, COMPUTE_OUT) and not staying):
                return call
            moving = any(memory.strides(value, places.context) for value in (*node.uses, *node.defs))
            return SegmentCall(
                call, None if moving else recorder
            )  # calls with addresses moving by iteration stay unrecorded

        return build_program(graph, self.plan.schedule, memory, bind, None)

    def saved_tensor(self, arena: DeviceArena, result: CallResult, flight: ArenaLease) -> Tensor:
        """Return a PyTorch tensor over a saved result in the arena, with a reference to the lease."""
        assert result.tensor is not None
        saved = _tensor_in_arena(arena, result.tensor)
        vars(saved)["lease"] = flight
        return saved


def _pass_numbers(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the pass number of each node of the root level, by node name."""
    numbers, piece = {}, 0
    for node in nodes:
        piece += node.op == SUSPEND
        numbers[node.name] = piece
    return numbers


def _tensor_in_arena(arena: DeviceArena, tensor: TracedTensor) -> Tensor:
    """Return a PyTorch tensor over the bytes of `tensor` in the arena."""
    region = arena.memory.places_at().region(tensor.value) if tensor.value.nbytes else None
    over: Tensor = arena.memory.tensor_with_layout(region, tensor.spec, tensor.layout)
    return over


@dataclass(frozen=True)
class _DeviceOutputs:
    """The backend of copy-out and compute-out nodes on a device, see `caller_outputs.py`.

    With `keeps_tensors`, as required for recorded calls, every run writes the same result tensors.
    """

    computed: ComputedOutputs
    pass_of: Mapping[str, int]
    results: Sequence[dict[int, Tensor]]
    device: str
    keeps_tensors: bool
    name: str = "take"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of a copy-out or compute-out node; None for any other node."""
        if node.op not in (COPY_OUT, COMPUTE_OUT):
            return None
        made, take = self.computed[node.name] if node.op == COMPUTE_OUT else (None, node)
        return _DeviceOutputKernel(self, self.results[self.pass_of[node.name]], take, made)


@dataclass(frozen=True)
class _DeviceOutputKernel:
    """Copies a result to a new tensor of the caller, or computes node `computed` directly in the tensor."""

    backend: _DeviceOutputs
    results: dict[int, Tensor]
    copy_out: Node
    computed: Node | None
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call writing the same tensor in each run with `keeps_tensors`, else a new tensor."""
        position = self.copy_out.attrs["position"]
        assert isinstance(position, int)
        if self.backend.keeps_tensors:
            with torch().inference_mode(False):
                self.results[position], call = self._result_and_fill(inputs)
            return call

        def give() -> None:
            tensor, call = self._result_and_fill(inputs)
            with torch().inference_mode():
                call()
            self.results[position] = tensor

        return give

    def _result_and_fill(self, inputs: Sequence[Operand | None]) -> tuple[Tensor, Call]:
        """Return a new tensor for the caller, and the call to fill the tensor."""
        (use,) = decode(self.copy_out).tensor_arguments()
        if self.computed is None:
            source: Tensor = strided_tensor(inputs[0], use.layout)
            place = torch().empty_like(source)
            return place, lambda: place.copy_(source)
        spec = spec_of(self.computed.defs[0])
        place = torch().empty(spec.shape, dtype=getattr(torch(), torch_name(spec.dtype)), device=self.backend.device)
        return strided_tensor(place, use.layout), DeviceKernel(self.computed).bind(inputs, [place], None)
