"""Kernels of the aten dialect for tensors on a device: only PyTorch operators, no kernels of Sublet.

Facts about operators were measured on the CPU. On a device, the first run of an operator with an `out=` overload is
verified. If a result does not lie in the planned place, later runs allocate results and copy. Operators drawing random
numbers always allocate and copy, to draw the same numbers as eager mode. No GPU has run the code yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError
from sublet.ir.graph import Node, Value
from sublet.ops.aten import AS_STRIDED, PREFIX, version_mismatch
from sublet.ops.aten.device_exceptions import SEED_RESULTS
from sublet.ops.aten.dialect import COPIES, OperatorFacts, facts_by_name
from sublet.ops.nn.command import PREFIX as COMMANDS
from sublet.runtime.backends.torch.aten import call_operands, meta_tensor, require_operator
from sublet.runtime.backends.torch.elementwise import COMPARISONS
from sublet.runtime.backends.torch.kernel import Tensor, copy_result, torch
from sublet.runtime.backends.torch.out_variants import OUT_VARIANTS
from sublet.runtime.calls import sequence_calls
from sublet.runtime.kernel import Array, Call, Kernel, Operand

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

        Raises RunError if the installed PyTorch lacks the operator, or is not the version of the facts.
        """
        wrong = version_mismatch(torch().__version__)
        if wrong:
            raise RunError(f"node {self.node.name}: {wrong}")
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
        write = None if name in NONDETERMINISTIC_ON_CUDA or results[0] is None else OUT_VARIANTS.get(name)
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
        names = [each.name for each in function._schema.arguments]
        keywords = {name: value for name, value in kwargs.items() if name in names}
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
