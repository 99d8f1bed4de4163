"""Which calls hold addresses of a storage, so that only these are bound anew when the caller brings other memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sublet.ir.graph import Node, Value
from sublet.plan import Context, Region
from sublet.runtime.dtypes import array_over
from sublet.runtime.joining import Guarded
from sublet.runtime.kernel import Call, Operand
from sublet.runtime.memory import Memory, Places
from sublet.tensor import TensorSpec

BindNode = Callable[[Node, Places], Call]


class _Held(Places):
    """Where the values of one node of the root level lie: looked up once, and again where memory was brought."""

    def __init__(self, memory: Memory, pointed: Mapping[str, Region], node: Node) -> None:
        super().__init__(memory, (), pointed)
        self.regions: dict[str, Region] = {}
        self.operands: dict[str, Operand] = {}
        for value in (*node.uses, *node.defs):
            if value.plannable and value.nbytes:
                self.regions[value.name] = super().region(value)

    def operand(self, value: Value) -> Operand:
        found = self.operands.get(value.name)
        if found is None:
            region = self.regions.get(value.name)
            if region is None:
                found = super().operand(value)
            else:
                assert isinstance(value.spec, TensorSpec)
                found = array_over(self.memory.bytes_at(region), value.spec)
            self.operands[value.name] = found
        return found

    def forget(self, storage: str) -> None:
        """Other memory was brought for a storage."""
        for name, region in self.regions.items():
            if region.storage == storage:
                self.operands.pop(name, None)


class Holders:
    """Noted while a program is built: by storage the nodes that read or write there, outside of loops and branches.

    What else holds addresses of a storage (loops, branches, moves, places that only a run knows) is not bound anew by
    itself: then the whole program is.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._nodes: dict[str, list[Node]] = {}
        self._pointed: dict[str, Mapping[str, Region]] = {}  # by node, what its pointers stand for
        self._others: set[str] = set()
        self._calls: dict[str, tuple[Guarded, int]] = {}  # by node, with its number among the nodes of the call
        self._held: dict[str, _Held] = {}  # by node

    def note(
        self, values: Iterable[Value], context: Context, pointed: Mapping[str, Region] | None, node: Node | None = None
    ) -> None:
        """What lies at `values` is held by the node, or by something else.

        `pointed` is what pointers among them stand for; None where only a run knows: they may be in any storage.
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

    def ended(self, calls: Iterable[Call]) -> None:
        """The program is built, of these calls."""
        for call in calls:
            if isinstance(call, Guarded):
                self._calls.update((node.name, (call, number)) for number, node in enumerate(call.nodes))

    def rebind(self, storage: str, bind: BindNode) -> bool:
        """Bind all that holds addresses of a storage to where it is now; False where that cannot be done call by call.

        Then, and after an error, some calls may be bound to the new place and others not.
        """
        if storage in self._others:
            return False
        for node in self._nodes.get(storage, ()):
            if node.name not in self._calls:
                return False
            held = self._held.get(node.name)
            if held is None:
                held = self._held[node.name] = _Held(self._memory, self._pointed.get(node.name, {}), node)
            held.forget(storage)
            call, number = self._calls[node.name]
            if not call.patch(number, bind(node, held)):
                return False
        return True
