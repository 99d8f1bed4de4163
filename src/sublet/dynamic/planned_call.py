"""The plan of a recorded call, run piece by piece in an arena shared by all plans of a graph."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sublet.api.binding import CompileRequest, model_with_kernels
from sublet.dynamic.call_trie import TrieNode
from sublet.dynamic.tensor import Parameter
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.dynamic.trace import Trace, trace_call
from sublet.ir.graph import CaseOf, Graph, Node, Value
from sublet.ir.recipe import PLAIN
from sublet.ops.nn import indexing, loss
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.rules import FLOATS
from sublet.plan import MemoryPlan, bound_storage_name
from sublet.planning.pipeline import plan_memory
from sublet.runtime.kernel import Array, Backend, Kernel
from sublet.runtime.memory import Raw, aligned_bytes
from sublet.runtime.resumable import ResumableExecutable, SuspensionBackend

# The updates possibly made by a run before a command refuses inputs, to be undone after the error.

REFUSING_COMMANDS = frozenset(PREFIX + record.name for record in (*indexing.COMMANDS, *loss.COMMANDS))
"""Commands refusing an index or label out of range."""

GRADIENT_SUFFIX = "_gradient"
"""Suffix of the gradient of a command: the gradient refuses no inputs accepted by the command."""


def updates_before_refusal(graph: Graph, plan: MemoryPlan) -> set[Value]:
    """Return the parameters possibly updated before the last command able to refuse inputs."""
    by_name = {node.name: node for node in graph.nodes}
    nodes = [by_name[step.node] for step in plan.schedule.steps]
    taken: set[Hashable] = set()
    last = 0
    for i, node in enumerate(nodes):
        if _may_refuse(node, taken):
            last = i
        taken.add(_index_query(node, node.uses[:1]))
    early_values = {value for node in nodes[:last] for value in node.defs}
    return {target for target, source in graph.updates if source in early_values}


def _may_refuse(node: Node, taken: set[Hashable]) -> bool:
    """True if a node may refuse an index, a label, or the index of a branch; or a node in a body or arm may.

    `taken` are the index queries of earlier nodes: a gradient never refuses a query accepted by the command.
    """
    if node.subgraphs:
        inside = (inner for graph in node.subgraphs for inner in graph.nodes)
        return isinstance(node, CaseOf) or any(_may_refuse(inner, set()) for inner in inside)
    known = node.op.endswith(GRADIENT_SUFFIX) and _index_query(node, node.defs[:1]) in taken
    return node.op in REFUSING_COMMANDS and not known


def _index_query(node: Node, table: tuple[Value, ...]) -> Hashable:
    """Return the index query of a command or of a gradient: operator, indices, shape and axis; None without indices."""
    if node.op not in REFUSING_COMMANDS:
        return None
    indices = tuple(value for value in node.uses if spec_of(value).dtype not in FLOATS)
    shapes = tuple(spec_of(value).shape for value in table)
    return node.op.removesuffix(GRADIENT_SUFFIX), indices, shapes, node.attrs.get("axis")


@dataclass(frozen=True)
class WeightBlindBackend:
    """A backend without access to the content of weights, as the content changes between calls."""

    backend: Backend

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of the backend, chosen without weights."""
        return self.backend.kernel(node, {})


class SharedArena:
    """The arena of all plans of a graph, used by one plan at a time: as large as the largest plan needs."""

    def __init__(self) -> None:
        self.raw: Raw = aligned_bytes(0, 64)

    def at_least(self, nbytes: int, alignment: int) -> Raw:
        """Return the memory, replaced by larger memory if smaller than `nbytes`."""
        if self.raw.nbytes < nbytes:
            self.raw = aligned_bytes(nbytes, max(alignment, 64))
        return self.raw


class PlannedCall:
    """The executable of the calls ending at the trie node `end`.

    path_nodes  the trie nodes from the first step to `end`
    model       the graph of the call, with the scratch memory of the kernels
    updated     the parameters updated by the call
    early       the updated parameters possibly overwritten before a command may refuse its inputs
    """

    def __init__(self, end: TrieNode, backends: Sequence[Backend], arena: SharedArena) -> None:
        path = end.path()
        self.end = end
        self.path_nodes = frozenset(path)
        self.trace: Trace = trace_call([moment.step for moment in path if moment.step is not None])
        parameters = self.trace.parameters
        homes = {name: bound_storage_of(parameter).array for name, parameter in parameters.items()}
        sources: list[Backend] = [SuspensionBackend(), *map(WeightBlindBackend, backends)]
        ready = model_with_kernels(CompileRequest(self.trace.model, backend=sources, weights=homes))
        self.model = replace(ready.model, recipe=PLAIN)  # `model` is what a user sees: scratch memory included
        self.plan = plan_memory(self.model)
        self.executable = ready.to_executable(self.plan)
        for name in self.trace.parameters:
            if bound_storage_name(name) in self.executable.planned_memory.storages:
                self.executable.bind(name, homes[name])
        self.updated = [parameters[value.name] for value in ready.model.graph.updated_values]
        early = updates_before_refusal(ready.model.graph, self.plan)
        self.early = [parameters[value.name] for value in ready.model.graph.updated_values if value in early]
        self._arena = arena
        self._raw: Raw | None = None
        self.pieces: ResumableExecutable

    def can_resume(self, piece: int) -> bool:
        """True if a run may continue before piece `piece` with only the values saved by the run of another plan.

        All values read after the suspension point must be saved at the point, and no saved value may be a renamed
        loop-carried value.
        """
        kept, pointers = self.trace.kept[piece - 1], self.executable.planned_memory.pointers
        return self.trace.closed[piece - 1] and not any(value.name in pointers for value in kept.values())

    def bind_memory(self, begun: Mapping[Parameter, TensorStorage]) -> None:
        """Bind the executable to the present arena and to the storages of the parameters.

        `begun` are the storages before the call of the parameters updated so far in the call.
        """
        if self.plan.arena_bytes:
            raw = self._arena.at_least(self.plan.arena_bytes, self.plan.alignment)
            if raw is not self._raw:
                self.executable.bind("arena", raw)
                self._raw = raw
                self.pieces = ResumableExecutable(self.executable)
        elif self._raw is None:
            self._raw = self._arena.raw
            self.pieces = ResumableExecutable(self.executable)
        for parameter in self.trace.parameters.values():
            move_to_bound_storage(parameter, begun.get(parameter, parameter._storage))


class PlannedRun:
    """A run of a plan.

    piece   the number of the next piece
    """

    def __init__(self, planned: PlannedCall, begun: Mapping[Parameter, TensorStorage]) -> None:
        planned.bind_memory(begun)
        self.planned = planned
        self.piece = 0
        self._fed: set[int] = set()

    def load_inputs(self, contents: Mapping[int, Any]) -> None:
        """Copy contents from outside, by slot, to the inputs of the plan; each input once."""
        for slot, value in self.planned.trace.externals.items():
            if slot not in self._fed and slot in contents:
                np.copyto(self.planned.pieces.array(value), contents[slot], casting="unsafe")
                self._fed.add(slot)

    def take(self, piece: int, kept: Mapping[int, Array]) -> None:
        """Continue before piece `piece`, with the values saved by the run of another plan, by slot."""
        self.piece = piece
        for slot, array in self.saved_values().items():
            np.copyto(array, kept[slot])

    def run_next_piece(self) -> None:
        """Run the next piece."""
        self.planned.pieces.run(self.piece)
        self.piece += 1

    def run_last_piece(self) -> None:
        """Run the last piece, with the updates of parameters. An error restores all parameters."""
        planned = self.planned
        saved = [(one, one.bound_storage.array.copy()) for one in planned.early if one.bound_storage]
        try:
            self.run_next_piece()
        except BaseException:
            for parameter, content in saved:
                assert parameter.bound_storage is not None
                np.copyto(parameter.bound_storage.array, content)
            raise

    def saved_values(self) -> dict[int, Array]:
        """Return the values saved at the latest suspension point, by slot, as arrays over the arena."""
        if not self.piece:
            return {}
        kept = self.planned.trace.kept[self.piece - 1]
        return {slot: self.planned.pieces.array(value) for slot, value in kept.items()}

    def result_arrays(self) -> dict[int, Array]:
        """Return the results by slot, as arrays over the arena."""
        return {slot: self.planned.pieces.result(value) for slot, value in self.planned.trace.left.items()}


def bound_storage_of(parameter: Parameter) -> TensorStorage:
    """Return the bound storage of a parameter: the fixed memory used by all plans."""
    if parameter.bound_storage is None:
        assert parameter._storage is not None
        parameter.bound_storage = parameter._storage.pool.store_copy(parameter._kind, parameter._storage.array)
        parameter.bound_storage.is_rewritten = True
    return parameter.bound_storage


def move_to_bound_storage(parameter: Parameter, held: TensorStorage | None) -> None:
    """Move the content `held` of a parameter to the bound storage.

    The parameter may already have the content after an update in the present call; only `held` is moved.
    """
    home = bound_storage_of(parameter)
    if held is not home:
        assert held is not None
        copy_for_other_holders(parameter)
        home = bound_storage_of(parameter)
        np.copyto(home.array, held.array)
        if parameter._storage is held:
            parameter._storage = home


def copy_for_other_holders(parameter: Parameter, holders: int = 0) -> None:
    """Before a write to the bound storage of a parameter, copy the content for all other holders of the storage.

    `holders` is the number of references to disregard. Other holders are detected by the reference count.
    """
    home = parameter.bound_storage
    assert home is not None
    # 3: the local `home`, the argument of getrefcount, and `parameter.home`
    own = 3 + holders + (parameter._storage is home)
    if sys.getrefcount(home) > own:
        moved = home.pool.store_copy(parameter._kind, home.array)
        home.block, moved.block = moved.block, home.block
        home.view, moved.view = moved.view, home.view
        if parameter._storage is home:
            parameter._storage = moved
        parameter.bound_storage = moved
        home.is_rewritten, moved.is_rewritten = False, True
