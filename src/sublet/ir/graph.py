"""The symbolic graph: values and nodes in SSA form, without memory and without streams.

A `Value` is an SSA name. A `Node` applies an op to values. `While` and `CaseOf` are nodes with sub-graphs;
a sub-graph may read any value of the enclosing graphs (the sub-graph *captures* the value).
All records are frozen: a pass builds a new graph.

Invariant: value names and node names are unique in the whole program, sub-graphs included. A name therefore
identifies a value in every graph of the program. `ops.verify` lists all further rules of a legal graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sublet.base.tensor import Spec, TensorSpec

Attr = int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name with a spec [NNC: tensor symbol].

    `literal` holds the elements, in row-major order, of a small constant (an axis list, a scalar); the facts of ops
    like Slice depend on them. `literal` is None for every other value.
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
        """True if the value is a tensor with a known shape and data type."""
        return isinstance(self.spec, TensorSpec)

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Node:
    """One application of an op [NNC: exec symbol].

    `op` is a dialect-qualified name (`"onnx.Conv"`). An omitted optional input or output is None.
    `source` says where the node comes from (a line of a file, a name in a model), for messages only.
    `scratch` is memory requested by the kernel: the node writes the scratch memory and no node reads the scratch
    memory, so the scratch memory is live for one step. The facts of an op do not mention scratch memory.
    `again` marks a rematerialization: common-subexpression elimination never merges the node with the original node.
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
        """The present inputs, in order, with duplicates."""
        return tuple(value for value in self.inputs if value is not None)

    @property
    def outputs_and_scratch(self) -> tuple[Value | None, ...]:
        """The outputs by position, followed by the scratch memory if the node has scratch memory."""
        return self.outputs if self.scratch is None else (*self.outputs, self.scratch)

    @cached_property
    def defs(self) -> tuple[Value, ...]:
        """The present outputs in order, followed by the scratch memory."""
        return tuple(value for value in self.outputs_and_scratch if value is not None)

    @property
    def label(self) -> str:
        """The name of the node, with its source if known, for messages."""
        return f"{self.name} ({self.source})" if self.source else self.name

    @property
    def plannable(self) -> bool:
        """True if all values read and written by the node can be planned."""
        return all(value.plannable for value in (*self.uses, *self.defs))

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The sub-graphs of the node; empty for a plain node."""
        return ()


@dataclass(frozen=True)
class While(Node):
    """A loop [NNC: while type sub-graph].

    One iteration: the first `check` nodes of the body run (the evaluation nodes), then the loop reads `condition`.
    If the condition is false the loop ends. Otherwise the loop fetches the slices, runs the remaining nodes, stores the
    rows and assigns all updates to the parameters in parallel. The trip count may be 0.

    inputs        one initial value a loop-carried parameter, then one sequence a slice
    outputs       one final value a loop-carried parameter (its content when the loop ended), then one
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
        """The iteration number, an i64 scalar starting at 0."""
        return self.body.inputs[0]

    @property
    def inits(self) -> tuple[Value, ...]:
        """The initial values of the loop-carried parameters."""
        return self.uses[: self.carried]

    @property
    def sequences(self) -> tuple[Value, ...]:
        """The sequences that the loop slices, one a slice."""
        return self.uses[self.carried :]

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The loop-carried parameters of the body."""
        return self.body.inputs[1 : 1 + self.carried]

    @property
    def slices(self) -> tuple[Value, ...]:
        """The slices of the sequences read by one iteration."""
        return self.body.inputs[1 + self.carried :]

    @property
    def updates(self) -> tuple[Value, ...]:
        """The values assigned to the parameters at the end of an iteration."""
        return self.body.outputs[: self.carried]

    @property
    def rows(self) -> tuple[Value, ...]:
        """The values stored into the stacked outputs at the end of an iteration."""
        return self.body.outputs[self.carried :]

    @property
    def finals(self) -> tuple[Value | None, ...]:
        """The outputs with the content of the parameters when the loop ended."""
        return self.outputs[: self.carried]

    @property
    def stacked_outputs(self) -> tuple[Value | None, ...]:
        """The outputs stacked from rows, one row an iteration."""
        return self.outputs[self.carried :]

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The body."""
        return (self.body,)


@dataclass(frozen=True)
class CaseOf(Node):
    """A branch [NNC: case..of type sub-graph].

    inputs   the index (a bool or integer scalar), then the fallbacks: either one an output, or no fallbacks
    arms     graphs without inputs; arm i runs when the index is i (False is 0, True is 1) and each
             output takes the arm's output of the same position
    An index < 0 runs no arm: each output takes its fallback. Without fallbacks an index without a matching arm is an
    error at run time.
    """

    arms: tuple[Graph, ...] = field(kw_only=True)

    @property
    def index(self) -> Value:
        """The scalar that selects the arm."""
        return self.uses[0]

    @property
    def fallbacks(self) -> tuple[Value, ...]:
        """The values of the outputs for an index < 0; empty if the branch has no fallbacks."""
        return self.uses[1:]

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The arms."""
        return self.arms


@dataclass(frozen=True)
class Graph:
    """Nodes in an order that respects data flow, with the values that enter and leave.

    `weights` are constants known before the run (initialisers); weights are never activations.
    Only the root graph has weights. Outputs may repeat, and may be inputs, weights or, in a
    sub-graph, captured values.

    `updates` are (target, source) pairs, in the root graph only: state carried from run to run. When a run ends,
    every target, an input or weight, takes the content of its source, all in parallel (two targets may be exchanged).
    No node of the same run reads the new content; the next run starts from the new content. An output that is a source
    has the new content.
    """

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Value, ...] = ()
    updates: tuple[tuple[Value, Value], ...] = ()

    def __repr__(self) -> str:  # a short form: the text form of a large graph fills screens
        sizes = f"nodes {len(self.nodes)}, inputs {len(self.inputs)}, outputs {len(self.outputs)}"
        return f"<Graph {self.name}: {sizes}, weights {len(self.weights)}>"

    @property
    def updated_values(self) -> tuple[Value, ...]:
        """The inputs and weights with another content after a run."""
        return tuple(target for target, _ in self.updates)

    @property
    def constants(self) -> tuple[Value, ...]:
        """The weights not updated by a run."""
        updated = set(self.updated_values)
        return tuple(weight for weight in self.weights if weight not in updated)

    def walk(self) -> Iterator[Node]:
        """Yield every node of the program, a node before the nodes of its sub-graphs."""
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
        """Yield every value of the program once, in order of definition."""
        yield from self.inputs
        yield from self.weights
        for node in self.nodes:
            yield from node.defs
            for sub in node.subgraphs:
                yield from sub.values()

    @property
    def unplannable_values(self) -> tuple[Value, ...]:
        """The values of the program that cannot be planned; the spec of each value holds the reason."""
        return tuple(value for value in self.values() if not value.plannable)
