"""How a planned graph was derived from its model: the plan records the recipe, and `sublet check` repeats the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sublet.base.names import unused_name
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import map_subgraphs
from sublet.ir.graph import Graph, Node, Value

GIVEN: Literal["given"] = "given"
LESS: Literal["less"] = "less"
LEAST: Literal["least"] = "least"
"""An order requested by the caller, the least memory found; the recipe of the resulting plan says "less"."""
OWN: Literal["own"] = "own"
AS_IS: Literal["none"] = "none"
ORDERS = {
    GIVEN: "in its own order",
    LESS: "in an order chosen for less memory",
    OWN: "in the caller's order",
}


PATCHES_PREFIX = "patches "
"""The prefix of the patches in `Recipe.changed`; the patches come last in the text."""

OPEN_DEFAULT = "open"
"""The text in `Recipe.const` of an input with a default in the file: a call may leave the input out."""

MAX_SHOWN_CHARACTERS = 40
"""The number of characters of a constant shown in the description of a recipe."""

OFFLOAD_SUFFIX = ".offload"
"""The suffix of the name of a node that offloads a value to slow memory, after the name of the value."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The changes made to the model of a file before planning.

    state      (input, output): inputs updated by an output from run to run
    carried    (input, output): inputs that a session over ranges updates by an output between calls
    const      (input, text): an input fixed to the numbers in the text, or "open" for an input with a default in the
               file, planned as an input
    optimize   the optimiser: "none", or a level of the integration's optimiser (`optimize_levels` of its record)
    by         further dependencies of the optimiser, as text: the version of ONNX Runtime and the processor
    changed    the passes of Sublet applied to the nodes: "" for no pass, "simplify" or "less_memory"; followed by
               "patches 4x4@NODE" for a front computed in patches (`passes/patching`)
    order      "given": the model's own, "less": an order with less memory, "own": a schedule passed by the caller
    split      (node, kind of rows, pieces): nodes computed in pieces (`passes/splitting`), before rematerialization
    again      (node, reader): a rematerialized node, and the node right after the copy (`passes/recompute`);
               a name ending with `OFFLOAD_SUFFIX` denotes a value reloaded from slow memory instead
    scratch    (node, bytes): scratch memory requested by kernels, part of the planned graph
    assumed    values with a shape declared by the caller, with their types: the plan is valid if the types are true
    declared   values with a type known only from the file, as for operators without a rule: equally a condition
    """

    optimize: str = AS_IS
    by: str = ""
    changed: str = ""
    order: str = GIVEN
    split: tuple[tuple[str, str, int], ...] = ()
    again: tuple[tuple[str, str], ...] = ()
    scratch: tuple[tuple[str, int], ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()
    declared: tuple[tuple[str, str], ...] = ()
    const: tuple[tuple[str, str], ...] = ()
    state: tuple[tuple[str, str], ...] = ()
    carried: tuple[tuple[str, str], ...] = ()

    @property
    def state_pairs(self) -> dict[str, str]:
        """The outputs that update inputs, by the name of the input: from run to run, or between calls of a session."""
        return dict((*self.state, *self.carried))

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """The values with a declared, not computed, type, with these types: the plan is valid if the types are true."""
        return (*self.assumed, *self.declared)

    @property
    def description(self) -> str:
        """The derivation of the graph as a sentence for messages."""
        graph = "as in the file" if self.optimize == AS_IS else f"after ONNX Runtime's optimiser ({self.optimize})"
        if self.const:
            graph += f", with {', '.join(f'{name}={text[:MAX_SHOWN_CHARACTERS]}' for name, text in self.const)}"
        kept = len(self.state_pairs)
        if kept:
            graph += f", with {kept} input{'s' if kept > 1 else ''} kept as state"
        if self.changed:
            graph += f", changed by {self.changed}"
        if self.split:
            graph += f", with {len(self.split)} nodes split or moved earlier"
        if self.again:
            back = sum(name.endswith(OFFLOAD_SUFFIX) for name, _ in self.again)
            more = len(self.again) - back
            done = [f"{more} nodes recomputed or delayed"] if more else []
            done += [f"{back} values reloaded from slow memory"] if back else []
            graph += f", with {' and '.join(done)} to save memory"
        if self.scratch:
            graph += f", with scratch memory for the kernels of {len(self.scratch)} nodes"
        return f"{graph}, {ORDERS.get(self.order, self.order)}"


PLAIN = Recipe()
"""The recipe of a model planned without any change."""


# Scratch memory: memory requested by kernels, added to the graph and planned like any tensor.


def with_scratch(graph: Graph, nbytes: Mapping[str, int]) -> Graph:
    """Return the graph with `nbytes[name]` bytes of scratch memory for each named node.

    The result is deterministic: equal sizes give equal graphs, names of the scratch values included.
    """
    taken = {value.name for value in graph.values()}
    return _add_scratch(graph, nbytes, taken) if nbytes else graph


def without_scratch(graph: Graph) -> Graph:
    """Return the graph without scratch memory, sub-graphs included."""
    nodes = (replace(node, scratch=None) if node.scratch is not None else node for node in graph.nodes)
    return replace(graph, nodes=tuple(map_subgraphs(node, without_scratch) for node in nodes))


def _add_scratch(graph: Graph, nbytes: Mapping[str, int], taken: set[str]) -> Graph:
    """Return one graph with scratch memory; add the names of the new values to `taken`."""
    nodes: list[Node] = []
    for node in graph.nodes:
        scratch = nbytes.get(node.name, 0)
        if scratch and not node.subgraphs:
            name = unused_name(f"{node.name}.scratch", taken)
            nodes.append(replace(node, scratch=Value(name, TensorSpec(DType.U8, (scratch,)))))
        else:
            nodes.append(map_subgraphs(node, lambda sub: _add_scratch(sub, nbytes, taken)))
    return replace(graph, nodes=tuple(nodes))
