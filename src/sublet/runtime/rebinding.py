"""Rebinding of single calls: records the calls holding addresses of a storage, and rebinds only the recorded calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.base.arrays import array_of, array_over, is_packed
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.plan import Context, Region, bound_storage_name
from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.kernel import Array, Call, Operand
from sublet.runtime.memory import ExecutableMemory, ValuePlaces, raw_bytes

BindNode = Callable[[Node, ValuePlaces], Call]


class _RootNodePlaces(ValuePlaces):
    """The places of the values of one root-level node: looked up once, and again after a change of memory."""

    def __init__(self, memory: ExecutableMemory, pointed: Mapping[str, Region], node: Node) -> None:
        super().__init__(memory, (), pointed)
        self.regions: dict[str, Region] = {}
        self.operands: dict[str, Operand] = {}
        for value in (*node.uses, *node.defs):
            if value.plannable and value.nbytes:
                self.regions[value.name] = super().region(value)

    def operand(self, value: Value) -> Operand:
        operand = self.operands.get(value.name)
        if operand is None:
            region = self.regions.get(value.name)
            if region is None:
                operand = super().operand(value)
            else:
                assert isinstance(value.spec, TensorSpec)
                operand = array_over(self.memory.bytes_at(region), value.spec)
            self.operands[value.name] = operand
        return operand

    def repointers(self, node: Node, storage: str, call: ErrorContext, number: int) -> list[_Repointer] | None:
        """Return setters pointing the call of the node at new memory; None if only the kernel can rebind."""
        operands = [(i, value) for i, value in enumerate((*node.inputs, *node.outputs)) if value is not None]
        setters = []
        for name, region in self.regions.items():
            if region.storage == storage:
                here = {i: value for i, value in operands if value.name == name}
                point = call.operand_setter(number, here) if here else None
                if point is None:
                    return None
                setters.append(_Repointer(next(iter(here.values())), region, self.operands, point))
        return setters

    def forget(self, storage: str) -> None:
        """Drop cached arrays over a storage after a change of memory."""
        for name, region in self.regions.items():
            if region.storage == storage:
                self.operands.pop(name, None)


@dataclass(frozen=True, slots=True)
class _Repointer:
    """A setter pointing a call at new memory of a value; `operands` caches the arrays of the node, by name."""

    value: Value
    region: Region
    operands: dict[str, Operand]
    point: Callable[[Array], None]


class ValueRepointer:
    """A fast path pointing a program at new memory of a value, without lookups and without kernels."""

    def __init__(self, memory: ExecutableMemory, value: Value, pointers: Sequence[_Repointer]) -> None:
        assert isinstance(value.spec, TensorSpec)
        self._memory = memory
        self._storage = bound_storage_name(value.name)
        self._shape, self._dtype = value.spec.shape, NUMPY[value.spec.dtype]
        self._whole = [(each.operands, each.value.name, each.point) for each in pointers if self._is_all(each)]
        self._parts = [each for each in pointers if not self._is_all(each)]

    def _is_all(self, pointer: _Repointer) -> bool:
        spec, offset = pointer.value.spec, pointer.region.offset
        return (
            offset == 0
            and isinstance(spec, TensorSpec)
            and (spec.shape, NUMPY[spec.dtype]) == (self._shape, self._dtype)
        )

    def __call__(self, given: Any, what: str) -> bool:
        """Return True if the memory fits the fast path. Raises RunError as `ExecutableMemory.adopt_bytes` does."""
        array = given if type(given) is np.ndarray else array_of(given, what)
        if array.dtype != self._dtype or array.shape != self._shape or not array.flags.c_contiguous:
            return False
        raw = raw_bytes(array)
        self._memory.adopt_bytes(self._storage, raw, what, self._dtype.itemsize)
        for operands, name, point in self._whole:
            operands[name] = array
            point(array)
        for each in self._parts:
            assert isinstance(each.value.spec, TensorSpec)
            here = each.operands[each.value.name] = array_over(
                raw[each.region.offset : each.region.end], each.value.spec
            )
            each.point(here)
        return True


class AddressHolders:
    """For each storage the root-level nodes with its addresses, recorded while the program is built.

    Other holders of addresses (loops, branches, moves, regions known only during the run) cannot be rebound one by one:
    the whole program is then bound again.
    """

    def __init__(self, memory: ExecutableMemory) -> None:
        self._memory = memory
        self._nodes: dict[str, list[Node]] = {}
        self._pointed: dict[str, Mapping[str, Region]] = {}  # by node: the bindings of its renamed carries
        self._others: set[str] = set()
        self._calls: dict[str, tuple[ErrorContext, int]] = {}  # by node: its call, and its number within the call
        self._node_places: dict[str, _RootNodePlaces] = {}  # by node
        self._patches: dict[str, ValueRepointer] = {}  # by the name used by the caller

    def note(
        self, values: Iterable[Value], context: Context, pointed: Mapping[str, Region] | None, node: Node | None = None
    ) -> None:
        """Record the storages of `values` as held by `node`, or, for None, by a holder without rebinding.

        `pointed` binds the renamed carries among the values; None if known only during the run: every storage then
        counts as held.
        """
        if pointed is None:
            self._others.update(self._memory.storages)
            return
        storages = {
            self._memory.region(value, context, pointed, {}).storage: None
            for value in values
            if value.nbytes and value.plannable
        }
        if node is None:
            self._others.update(storages)
            return
        for storage in storages:
            self._nodes.setdefault(storage, []).append(node)
        if pointed:
            self._pointed[node.name] = pointed

    def record_calls(self, calls: Iterable[Call]) -> None:
        """Record the calls of the finished program."""
        for call in calls:
            if isinstance(call, ErrorContext):
                self._calls.update((node.name, (call, number)) for number, node in enumerate(call.nodes))

    def rebind(self, storage: str, bind: BindNode) -> bool:
        """Rebind all calls holding addresses of a storage; False if not possible call by call.

        After False or an error, some calls may be rebound and others not.
        """
        if storage in self._others:
            return False
        for node in self._nodes.get(storage, ()):
            if node.name not in self._calls:
                return False
            held = self._node_places.get(node.name)
            if held is None:
                held = self._node_places[node.name] = _RootNodePlaces(
                    self._memory, self._pointed.get(node.name, {}), node
                )
            held.forget(storage)
            call, number = self._calls[node.name]
            if not call.patch(number, bind(node, held)):
                return False
        return True

    def learn(self, name: str, value: Value) -> None:
        """Prepare fast repointing of a value after a rebind, unless some call needs its kernel each time."""
        storage, spec, setters = bound_storage_name(value.name), value.spec, list[_Repointer]()
        if storage in self._others or not isinstance(spec, TensorSpec) or is_packed(spec):
            return
        for node in self._nodes.get(storage, ()):
            call, number = self._calls[node.name]
            pointers = self._node_places[node.name].repointers(node, storage, call, number)
            if pointers is None:
                return
            setters += pointers
        self._patches[name] = ValueRepointer(self._memory, value, setters)

    def try_repoint(self, name: str, given: Any) -> bool:
        """True if repointing sufficed to bind the memory `given`. Raises RunError when the memory does not fit."""
        patch = self._patches.get(name)
        return patch is not None and patch(given, name)
