"""The symbolic graph: values and nodes in SSA form. It knows no memory and no streams.

A `Value` is an SSA name. A `Node` applies an op to values. `While` and `CaseOf` are nodes that own
sub-graphs; a sub-graph may read any value of the graphs around it (it *captures* them).
All records are frozen: a pass builds a new graph.

Invariant: value names and node names are unique in the whole program, sub-graphs included, so a
name identifies a value everywhere. `ops.verify` lists everything else a legal graph satisfies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sublet.base.tensor import Spec, TensorSpec

Attr = int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name with its spec [NNC: tensor symbol].

    `literal` holds the elements, in row-major order, of a small constant (an axis list, a scalar);
    the facts of ops such as Slice depend on them. It is None everywhere else.
    """

    name: str
    spec: Spec
    literal: tuple[int | float | bool, ...] | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 for a value that cannot be planned."""
        return self.spec.nbytes if isinstance(self.spec, TensorSpec) else 0

    @property
    def plannable(self) -> bool:
        return isinstance(self.spec, TensorSpec)

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Node:
    """One application of an op [NNC: exec symbol].

    `op` is a dialect-qualified name (`"onnx.Conv"`). An omitted optional input or output is None.
    `source` says where the node comes from (a line of a file, a name in a model), for messages only.
    `scratch` is memory that its kernel asked for: written by the node and read by nobody, so that it
    lives for that one step. The facts of an op do not know it.
    `again` marks a node that computes on purpose what another one computes: it is never merged with that one.
    """

    name: str
    op: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    source: str = field(default="", compare=False)
    scratch: Value | None = field(default=None, kw_only=True)
    again: bool = field(default=False, kw_only=True)

    @cached_property
    def uses(self) -> tuple[Value, ...]:
        """Inputs that are present, in order, duplicates kept."""
        return tuple(value for value in self.inputs if value is not None)

    @property
    def written(self) -> tuple[Value | None, ...]:
        """The outputs by position, then the scratch memory if there is any."""
        return self.outputs if self.scratch is None else (*self.outputs, self.scratch)

    @cached_property
    def defs(self) -> tuple[Value, ...]:
        """What is written and present, in order."""
        return tuple(value for value in self.written if value is not None)

    @property
    def told(self) -> str:
        """Its name, and where it comes from if that is known, for messages."""
        return f"{self.name} ({self.source})" if self.source else self.name

    @property
    def plannable(self) -> bool:
        """Whether all that it reads and writes is."""
        return all(value.plannable for value in (*self.uses, *self.defs))

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        return ()


@dataclass(frozen=True)
class While(Node):
    """A loop [NNC: while type sub-graph].

    One round: the first `check` nodes of the body run (the evaluation nodes), `condition` is read;
    if it is false the loop ends, else the slices are fetched, the remaining nodes run, the rows are
    stored and every parameter takes its update, all at once. The trip count may be 0.

    inputs        one initial value a carried parameter, then one sequence a slice
    outputs       one final value a carried parameter (its content when the loop ended), then one
                  stacked sequence a row
    body.inputs   the counter (0, 1, ...; an i64 scalar), the parameters, the slices
    body.outputs  the updates, then the rows
    """

    body: Graph = field(kw_only=True)
    condition: Value = field(kw_only=True)
    check: int = field(kw_only=True, default=0)
    carried: int = field(kw_only=True)
    slice_axes: tuple[int, ...] = field(kw_only=True, default=())
    slice_reversed: tuple[bool, ...] = field(kw_only=True, default=())
    row_axes: tuple[int, ...] = field(kw_only=True, default=())
    row_reversed: tuple[bool, ...] = field(kw_only=True, default=())

    @property
    def counter(self) -> Value:
        return self.body.inputs[0]

    @property
    def inits(self) -> tuple[Value, ...]:
        return self.uses[: self.carried]

    @property
    def sequences(self) -> tuple[Value, ...]:
        return self.uses[self.carried :]

    @property
    def parameters(self) -> tuple[Value, ...]:
        return self.body.inputs[1 : 1 + self.carried]

    @property
    def slices(self) -> tuple[Value, ...]:
        return self.body.inputs[1 + self.carried :]

    @property
    def updates(self) -> tuple[Value, ...]:
        return self.body.outputs[: self.carried]

    @property
    def rows(self) -> tuple[Value, ...]:
        return self.body.outputs[self.carried :]

    @property
    def finals(self) -> tuple[Value | None, ...]:
        return self.outputs[: self.carried]

    @property
    def stacked(self) -> tuple[Value | None, ...]:
        return self.outputs[self.carried :]

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        return (self.body,)


@dataclass(frozen=True)
class CaseOf(Node):
    """A branch [NNC: case..of type sub-graph].

    inputs   the index (a bool or integer scalar), then the fallbacks: one an output, or none at all
    arms     graphs without inputs; arm i runs when the index is i (False is 0, True is 1) and each
             output takes the arm's output of the same position
    An index < 0 runs no arm: each output takes its fallback. Without fallbacks an index that names
    no arm is an error at run time.
    """

    arms: tuple[Graph, ...] = field(kw_only=True)

    @property
    def index(self) -> Value:
        return self.uses[0]

    @property
    def fallbacks(self) -> tuple[Value, ...]:
        return self.uses[1:]

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        return self.arms


@dataclass(frozen=True)
class Graph:
    """Nodes in an order that respects data flow, with the values that enter and leave.

    `weights` are constants known before the run (initialisers); they are never activations.
    Only the root graph has weights. Outputs may repeat, and may be inputs, weights or, in a
    sub-graph, captured values.

    `updates` are (target, source) pairs, in the root graph only: state that runs carry over. When a run ends,
    every target, an input or weight, takes the content of its source, all at once (two may be exchanged).
    No node of this run sees that; the next run starts from it. An output that is a source has the new content.
    """

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Value, ...] = ()
    updates: tuple[tuple[Value, Value], ...] = ()

    def __repr__(self) -> str:  # the text form says it all
        sizes = f"nodes {len(self.nodes)}, inputs {len(self.inputs)}, outputs {len(self.outputs)}"
        return f"<Graph {self.name}: {sizes}, weights {len(self.weights)}>"

    @property
    def updated(self) -> tuple[Value, ...]:
        """The inputs and weights that a run leaves with another content."""
        return tuple(target for target, _ in self.updates)

    @property
    def constants(self) -> tuple[Value, ...]:
        """The weights that stay what they are."""
        updated = set(self.updated)
        return tuple(weight for weight in self.weights if weight not in updated)

    def walk(self) -> Iterator[Node]:
        """Every node of the program, a node before the nodes of its sub-graphs."""
        todo = [iter(self.nodes)]
        while todo:
            for node in todo[-1]:
                yield node
                if node.subgraphs:
                    todo += [iter(sub.nodes) for sub in reversed(node.subgraphs)]
                    break
            else:
                todo.pop()

    def values(self) -> Iterator[Value]:
        """Every value of the program once, in order of definition."""
        yield from self.inputs
        yield from self.weights
        for node in self.nodes:
            yield from node.defs
            for sub in node.subgraphs:
                yield from sub.values()

    @property
    def outside(self) -> tuple[Value, ...]:
        """The values of the program that cannot be planned; their specs say why."""
        return tuple(value for value in self.values() if not value.plannable)
