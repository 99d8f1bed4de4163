"""Kernels of the aten dialect for tensors on a device: only PyTorch operators, no kernels of Sublet.

Facts about operators were measured on the CPU. On a device, the first run of an operator with an `out=` overload is
verified. If a result does not lie in the planned place, later runs allocate results and copy. Operators drawing random
numbers always allocate and copy, to draw the same numbers as eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from sublet.base.arrays import torch_name
from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.dialect import (
    AS_STRIDED,
    COPIES,
    PREFIX,
    SEED_RESULTS,
    StridedLayout,
)
from sublet.integrations.torch.kernels.aten import call_operands, keywords_beside_out, meta_tensor, require_operator
from sublet.integrations.torch.kernels.elementwise import COMPARISONS
from sublet.integrations.torch.kernels.kernel import Tensor, copy_result, torch
from sublet.integrations.torch.kernels.out_variants import OUT_VARIANTS
from sublet.integrations.torch.operator_facts import OperatorFacts, facts_by_name, require_supported_version
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import PREFIX as COMMANDS
from sublet.plan import MemoryPlan, Region
from sublet.runtime.kernel import Array, Call, CallSequence, Kernel, Operand, sequence_calls
from sublet.runtime.memory import ExecutableMemory

# Memory of a plan on a device: the arena is a PyTorch tensor, and values are tensors over the bytes of the arena.


class DeviceMemory(ExecutableMemory):
    """Memory allocating the arena of a plan on a device; weights stay at their addresses.

    A tensor over the arena is no PyTorch view: each tensor has a separate version counter. A write to a value
    therefore does not invalidate overlapping tensors saved by autograd.
    """

    def __init__(self, graph: Graph, plan: MemoryPlan, device: str) -> None:
        super().__init__(graph, plan)
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    def raw(self, storage: str) -> Any:
        """Return the bytes of a storage as a tensor.

        The first call allocates the storage, unless `bind_storage` has bound a tensor.
        """
        if storage not in self._tensors:
            with torch().inference_mode(False):
                allocated = torch().empty(self.storages[storage].nbytes, dtype=torch().uint8, device=self.device)
            self._tensors[storage] = allocated
        return self._tensors[storage]

    def bind_storage(self, storage: str, tensor: Tensor) -> None:
        """Bind a storage to the bytes of a tensor with contiguous elements, in any order of axes."""
        with torch().inference_mode(False), torch().no_grad():
            elements = StridedLayout.contiguous((tensor.numel(),), tensor.storage_offset())
            flat = _tensor_over_memory(tensor, tensor.dtype, elements)
            self._tensors[storage] = flat.view(torch().uint8)

    def array(self, region: Region | None, spec: TensorSpec) -> Array:
        """Return the tensor of a value in a region; an empty-strided new tensor for a value without bytes."""
        layout = StridedLayout.contiguous(spec.shape)
        if region is not None and region.rows > 1:
            layout = replace(layout, stride=(region.pitch * 8 // spec.dtype.bits, *layout.stride[1:]))
        tensor: Array = self.tensor_with_layout(region, spec, layout)
        return tensor

    def tensor_with_layout(self, region: Region | None, spec: TensorSpec, layout: StridedLayout) -> Tensor:
        """Return elements of a value as a PyTorch tensor with size, stride and offset of `layout`, in elements."""
        dtype = getattr(torch(), torch_name(spec.dtype))
        with torch().inference_mode(False):
            if region is None:
                return torch().empty_strided(layout.size, layout.stride, dtype=dtype, device=self.device)
            raw = self.raw(region.storage)
            begin = (raw.storage_offset() + region.offset) // dtype.itemsize
            return _tensor_over_memory(raw, dtype, replace(layout, offset=begin + layout.offset))


def _tensor_over_memory(tensor: Tensor, dtype: Any, layout: StridedLayout) -> Tensor:
    """Return a tensor over the memory of `tensor`; `layout.offset` counts elements from the start of the memory."""
    empty = torch().empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), layout.offset, layout.size, layout.stride)


# Graph segments: successive calls without control flow in between, recorded once and replayed as a single call.


class CallRecorder(Protocol):
    """A recorder of calls, such as a CUDA graph: replays a call's device work at the same addresses without Python."""

    def record(self, call: Call) -> Call:
        """Run `call` once and return a call repeating the same work."""


class SegmentCall:
    """A call that may become part of a graph segment."""

    __slots__ = ("call", "recorder")

    def __init__(self, call: Call, recorder: CallRecorder | None = None) -> None:
        self.call, self.recorder = call, recorder

    def __call__(self) -> None:
        with torch().inference_mode():
            self.call()

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        """Merge the call with following calls of the same recorder; return the segment and the number merged."""
        parts = [self]
        for other in following:
            if not isinstance(other, SegmentCall) or other.recorder is not self.recorder:
                break
            parts.append(other)
        return GraphSegment([part.call for part in parts], self.recorder), len(parts) - 1


class GraphSegment(CallSequence):
    """A sequence of calls as a single call, recorded at the second run.

    The first run is not recorded: libraries initialise and the calls verify results.
    """

    __slots__ = ("_recorder", "_replay", "_run_before")

    def __init__(self, calls: Sequence[Call], recorder: CallRecorder | None) -> None:
        super().__init__(calls)
        self._recorder, self._run_before = recorder, False
        self._replay: Call | None = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        if self._recorder is not None and self._run_before:
            self._replay = self._recorder.record(self._run)
        else:
            self._run()
        self._run_before = True

    def _run(self) -> None:
        with torch().inference_mode():
            super().__call__()


NONDETERMINISTIC_ON_CUDA = ("embedding_dense_backward.default",)
"""Operators with an out variant that sums in a different order each run on CUDA, unlike PyTorch's kernel."""


@dataclass(frozen=True)
class DeviceBackend:
    """The backend for operators on a device, and for the comparison ending a scan."""

    name: str = "torch"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of an operator or comparison with plannable operands; None for any other node."""
        if not node.plannable:
            return None
        if node.op.startswith(PREFIX):
            return DeviceKernel(node)
        return _ComparisonKernel(node) if node.op.removeprefix(COMMANDS) in COMPARISONS else None


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel calling a PyTorch operator on a device, by the facts valid on every device."""

    node: Node
    scratch: int = 0

    @property
    def allocates(self) -> int:
        """The bytes allocated by PyTorch for results, before the kernel copies the results to the planned places."""
        given, places = ([meta_tensor(value) for value in values] for values in (self.node.inputs, self.node.outputs))
        direct = self._direct_call(*call_operands(self.node, given, places))
        return 0 if direct is not None else sum(value.nbytes for value in self.node.defs)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call of the operator.

        Raises RunError if the installed PyTorch lacks the operator, or is too old.
        """
        require_supported_version(torch().__version__, RunError, f"node {self.node.name}: ")
        results, args, kwargs = call_operands(self.node, inputs, outputs)
        return self._direct_call(results, args, kwargs) or self._allocating_call(results, args, kwargs)

    def _direct_call(self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Call | None:
        """Return the call writing results to the planned places; None if the operator has no such form."""
        name = self.node.op.removeprefix(PREFIX)
        if self.node.op in (AS_STRIDED, *COPIES):
            return partial(results[0].copy_, args[0])
        op_facts = (
            facts_by_name().get(name, OperatorFacts())
            if all(value is not None for value in self.node.outputs)
            else OperatorFacts()
        )
        if op_facts.inside and not op_facts.random:
            in_place_call = partial(require_operator(op_facts.inside, self.node), results[0], *args[1:], **kwargs)
            is_in_place = args[0].data_ptr() == results[0].data_ptr()
            return in_place_call if is_in_place else sequence_calls([partial(results[0].copy_, args[0]), in_place_call])
        if op_facts.out and not op_facts.random:
            return _VerifiedCall(
                self.node, op_facts.out, results, args, kwargs, self._allocating_call(results, args, kwargs)
            )
        excluded = op_facts.random or name in NONDETERMINISTIC_ON_CUDA or results[0] is None
        write = None if excluded else OUT_VARIANTS.get(name)
        calls = None if write is None else write(results[0], *args, **kwargs)
        return None if calls is None else sequence_calls(calls)

    def _allocating_call(
        self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> _AllocatingCall:
        name = self.node.op.removeprefix(PREFIX)
        places = [None if i in SEED_RESULTS.get(self.node.op, ()) else place for i, place in enumerate(results)]
        return _AllocatingCall(partial(require_operator(name, self.node), *args, **kwargs), places)


@dataclass(frozen=True)
class _AllocatingCall:
    """A call computing in memory allocated by PyTorch, then copying the results to the planned places."""

    function: Callable[[], Any]
    places: Sequence[Tensor | None]

    def __call__(self) -> None:
        returned = self.function()
        for place, result in zip(
            self.places, returned if isinstance(returned, tuple | list) else (returned,), strict=True
        ):
            if place is not None:
                copy_result(place, result)


class _VerifiedCall:
    """A call of an `out=` overload, verified at the first run.

    If a result lies elsewhere or in a different layout, later runs use the allocating call. PyTorch receives new
    tensors over the places: PyTorch may then resize or move only the new tensors.
    """

    def __init__(
        self,
        node: Node,
        out: str,
        places: Sequence[Tensor],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        apart: _AllocatingCall,
    ) -> None:
        function = require_operator(out, node)
        keywords = keywords_beside_out(function, kwargs)
        self._node, self._places, self._fallback = node, places, apart
        self._result_tensors = [each.as_strided(each.shape, each.stride(), each.storage_offset()) for each in places]
        outs = [each.name for each in function._schema.arguments if each.is_out]
        seen = (
            [self._with_result_strides(each) for each in args],
            {name: self._with_result_strides(each) for name, each in keywords.items()},
        )
        self._call: Call = partial(function, *seen[0], **seen[1], **dict(zip(outs, self._result_tensors, strict=True)))
        self._overwrites = any(
            _address_of(each) in map(_address_of, places) for each in (*args, *kwargs.values()) if _address_of(each)
        )
        self._is_unverified = True

    def _with_result_strides(self, argument: Any) -> Any:
        """Return an operand overlapping a result with the strides of the result.

        PyTorch compares strides even of axes with one element.
        """
        for place in self._result_tensors:
            if _address_of(argument) and argument.shape == place.shape and not _lies_elsewhere(argument, place):
                return argument.as_strided(place.shape, place.stride(), argument.storage_offset())
        return argument

    def __call__(self) -> None:
        """Run the call. The first run raises RunError if PyTorch may have overwritten other tensors or the operands."""
        self._call()
        if self._is_unverified:
            self._is_unverified = False
            self._verify()

    def _verify(self) -> None:
        pairs = list(zip(self._result_tensors, self._places, strict=True))
        for over, place in pairs:
            if over.shape != place.shape:
                shapes = f"{list(over.shape)}, but was traced with {list(place.shape)}"
                raise RunError(f"node {self._node.name}, {self._node.op}: PyTorch gives a tensor {shapes}")
        if any(_lies_elsewhere(over, place) for over, place in pairs):
            if self._overwrites:
                raise RunError(f"node {self._node.name}, {self._node.op}: PyTorch did not write where it was told")
            self._call = self._fallback
            self._call()


def _address_of(argument: Any) -> int:
    """Return the address of a tensor; 0 for a tensor without bytes and for any other argument."""
    return int(argument.data_ptr()) if isinstance(argument, torch().Tensor) else 0


def _lies_elsewhere(over: Tensor, place: Tensor) -> bool:
    """True if elements of `over` do not lie at those of `place`; strides of axes with one element do not matter."""
    steps = zip(over.shape, over.stride(), place.stride(), strict=True)
    return over.data_ptr() != place.data_ptr() or any(n > 1 and a != b for n, a, b in steps)


@dataclass(frozen=True)
class _ComparisonKernel:
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        function = getattr(torch(), COMPARISONS[self.node.op.removeprefix(COMMANDS)])
        return partial(function, *inputs, out=outputs[0])
