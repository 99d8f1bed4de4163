"""Kernels of the aten dialect over tensors that lie on a device: PyTorch's operators alone, none of our own.

What is known of operators was found on the CPU. Elsewhere an operator with an `out=` is watched at its first run, and
computed apart from then on if its result does not come to lie where it was told; what draws numbers always is, so that
it draws as eagerly. None of this has been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError
from sublet.ir.graph import Node, Value
from sublet.ops.aten import AS_STRIDED, PREFIX, other_version
from sublet.ops.aten.dialect import COPIES, Facts, facts
from sublet.ops.aten.elsewhere import SEEDS
from sublet.ops.nn.command import PREFIX as COMMANDS
from sublet.runtime.backends.torch.aten import on_meta, operands, operator_of
from sublet.runtime.backends.torch.elementwise import COMPARISONS
from sublet.runtime.backends.torch.kernel import Tensor, put, torch
from sublet.runtime.backends.torch.written import WRITTEN
from sublet.runtime.calls import in_turn
from sublet.runtime.kernel import Array, Call, Kernel, Operand

OWN_ORDER = ("embedding_dense_backward.default",)
"""What is written with operators that add up in another order each time on CUDA; PyTorch's own kernel does not."""


@dataclass(frozen=True)
class OnDevice:
    """The backend of operators on a device, and of the comparison that ends a scan."""

    name: str = "torch"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The kernel of an operator whose operands are all planned; None for any other."""
        if not node.plannable:
            return None
        if node.op.startswith(PREFIX):
            return DeviceKernel(node)
        return _Comparing(node) if node.op.removeprefix(COMMANDS) in COMPARISONS else None


@dataclass(frozen=True)
class DeviceKernel:
    """An operator of PyTorch's, by the facts of its name as far as these hold on every device."""

    node: Node
    scratch: int = 0

    @property
    def allocates(self) -> int:
        """Bytes of tensors of its own that it gives at once, which are copied to their places."""
        given, places = ([on_meta(value) for value in values] for values in (self.node.inputs, self.node.outputs))
        direct = self._direct(*operands(self.node, given, places))
        return 0 if direct is not None else sum(value.nbytes for value in self.node.defs)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """A call of torch's. Raises RunError for an operator that this PyTorch has not, and for another PyTorch than
        the facts are of."""
        wrong = other_version(torch().__version__)
        if wrong:
            raise RunError(f"node {self.node.name}: {wrong}")
        results, args, kwargs = operands(self.node, inputs, outputs)
        return self._direct(results, args, kwargs) or self._apart(results, args, kwargs)

    def _direct(self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Call | None:
        """The call that writes results where they belong; None where there is none."""
        name = self.node.op.removeprefix(PREFIX)
        if self.node.op in (AS_STRIDED, *COPIES):
            return partial(results[0].copy_, args[0])
        known = facts().get(name, Facts()) if all(value is not None for value in self.node.outputs) else Facts()
        if known.inside and not known.random:
            inside = partial(operator_of(known.inside, self.node), results[0], *args[1:], **kwargs)
            there = args[0].data_ptr() == results[0].data_ptr()
            return inside if there else in_turn([partial(results[0].copy_, args[0]), inside])
        if known.out and not known.random:
            return _Watched(self.node, known.out, results, args, kwargs, self._apart(results, args, kwargs))
        write = None if name in OWN_ORDER or results[0] is None else WRITTEN.get(name)
        calls = None if write is None else write(results[0], *args, **kwargs)
        return None if calls is None else in_turn(calls)

    def _apart(self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> _Apart:
        name = self.node.op.removeprefix(PREFIX)
        places = [None if i in SEEDS.get(self.node.op, ()) else place for i, place in enumerate(results)]
        return _Apart(partial(operator_of(name, self.node), *args, **kwargs), places)


@dataclass(frozen=True)
class _Apart:
    """Computes in tensors of PyTorch's, which are copied to their places."""

    function: Callable[[], Any]
    places: Sequence[Tensor | None]

    def __call__(self) -> None:
        made = self.function()
        for place, result in zip(self.places, made if isinstance(made, tuple | list) else (made,), strict=True):
            if place is not None:
                put(place, result)


class _Watched:
    """An operator with an `out=`. What its first run lays elsewhere or otherwise is computed apart from then on.

    PyTorch is given tensors over the places, so that these stay what they are.
    """

    def __init__(
        self, node: Node, out: str, places: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any], apart: _Apart
    ) -> None:
        function = operator_of(out, node)
        names = [each.name for each in function._schema.arguments]
        told = {name: value for name, value in kwargs.items() if name in names}
        self._node, self._places, self._apart = node, places, apart
        self._over = [each.as_strided(each.shape, each.stride(), each.storage_offset()) for each in places]
        outs = [each.name for each in function._schema.arguments if each.is_out]
        seen = [self._as_placed(each) for each in args], {name: self._as_placed(each) for name, each in told.items()}
        self._call: Call = partial(function, *seen[0], **seen[1], **dict(zip(outs, self._over, strict=True)))
        self._overwrites = any(_at(each) in map(_at, places) for each in (*args, *kwargs.values()) if _at(each))
        self._watching = True

    def _as_placed(self, argument: Any) -> Any:
        """An operand that a result lies over with the result's steps: PyTorch compares those of single elements too."""
        for place in self._over:
            if _at(argument) and argument.shape == place.shape and not _moved(argument, place):
                return argument.as_strided(place.shape, place.stride(), argument.storage_offset())
        return argument

    def __call__(self) -> None:
        """Raises RunError where the first run may have written over other tensors, or over what it is to be run of."""
        self._call()
        if self._watching:
            self._watching = False
            self._watch()

    def _watch(self) -> None:
        pairs = list(zip(self._over, self._places, strict=True))
        for over, place in pairs:
            if over.shape != place.shape:
                shapes = f"{list(over.shape)}, but was traced with {list(place.shape)}"
                raise RunError(f"node {self._node.name}, {self._node.op}: PyTorch gives a tensor {shapes}")
        if any(_moved(over, place) for over, place in pairs):
            if self._overwrites:
                raise RunError(f"node {self._node.name}, {self._node.op}: PyTorch did not write where it was told")
            self._call = self._apart
            self._call()


def _at(argument: Any) -> int:
    """The address of a tensor; 0 for one without bytes, and for anything else."""
    return int(argument.data_ptr()) if isinstance(argument, torch().Tensor) else 0


def _moved(over: Tensor, place: Tensor) -> bool:
    """Whether elements of a tensor do not lie where those of a place do; steps of axes with one element say nothing."""
    steps = zip(over.shape, over.stride(), place.stride(), strict=True)
    return over.data_ptr() != place.data_ptr() or any(n > 1 and a != b for n, a, b in steps)


@dataclass(frozen=True)
class _Comparing:
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        function = getattr(torch(), COMPARISONS[self.node.op.removeprefix(COMMANDS)])
        return partial(function, *inputs, out=outputs[0])
