"""Loops and branches as commands: a node with bodies or arms, applied to all outer values read inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from sublet.api.binding import CompileRequest, model_with_kernels
from sublet.base.errors import KernelError, SpecError, SubletError
from sublet.base.names import NameGenerator
from sublet.base.tensor import TensorSpec
from sublet.dynamic.tensor_storage import BlockPool, KindRegistry, TensorKind, TensorStorage
from sublet.ir.dataflow import map_subgraphs, rename_values_in_node, required_values
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ir.model import Model
from sublet.ir.text import to_text
from sublet.nn.source_location import at_line
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.rules import FLOATS
from sublet.planning.pipeline import plan_memory
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend
from sublet.training.step import finish_step

PROGRAM_ATTR = "written"
"""The attribute with the written program of a command."""


class WrittenControlFlow:
    """A written loop or branch.

    operands   the outer values read by the node, each once, in the order of the command's operands
    key        a hash of the program, equal for equal programs with other value names
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.operands = outer_values_read(node)

    @cached_property
    def key(self) -> str:
        """The hash of the program in canonical value names."""
        names = NameGenerator()
        emit = Emitter(names, LiteralPool(names))
        operands = [Value(names.fresh("x"), value.spec) for value in self.operands]
        made = [Value(names.fresh("y"), value.spec) for value in self.node.defs]
        node = copy_node(self.node, emit, dict(zip((*self.operands, *self.node.defs), (*operands, *made), strict=True)))
        graph = Graph("program", tuple(operands), (node,), tuple(made), tuple(emit.literals.added))
        return sha256(to_text(graph).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrittenControlFlow) and (other is self or other.key == self.key)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.node.op} {self.key}>"


def outer_values_read(node: Node) -> tuple[Value, ...]:
    """Return the outer values read by a node, each once, without constants."""
    return tuple(value for value in required_values(node) if value.literal is None)


def copy_node(node: Node, emit: Emitter, names: dict[Value, Value]) -> Node:
    """Return a copy of a node with values of `emit`: as mapped by `names`, else new values."""
    mapping = dict(names)
    for sub in node.subgraphs:
        for value in sub.values():
            mapping[value] = Value(emit.names.fresh("v"), value.spec)
    for value in (*required_values(node), *_literals_read(node)):
        if value.literal is not None and isinstance(value.spec, TensorSpec):
            mapping[value] = emit.literals.constant_of(value.literal, value.spec)
    return _with_new_names(rename_values_in_node(node, mapping, definitions=True), emit)


def _literals_read(node: Node) -> list[Value]:
    """Return the literal values read by a node or inside its bodies and arms."""
    inside = [inner for sub in node.subgraphs for inner in sub.walk()]
    return [value for each in (node, *inside) for value in required_values(each) if value.literal is not None]


def _with_new_names(node: Node, emit: Emitter) -> Node:
    """Return the node with new names for the node and all nodes inside."""

    def sub(graph: Graph) -> Graph:
        return replace(
            graph, name=emit.names.fresh("body"), nodes=tuple(_with_new_names(each, emit) for each in graph.nodes)
        )

    return replace(map_subgraphs(node, sub), name=emit.names.fresh(node.op.rpartition(".")[2]))


class ControlFlowCommand:
    """A loop or branch with a plan, computed at once like a `SpecializedCommand`, with the same attributes.

    The plan is made at the first run. Raises SpecError for a result with an unknown number of rows.
    """

    direct = None

    def __init__(self, written: WrittenControlFlow, kinds: KindRegistry, backends: Sequence[Backend]) -> None:
        self.written = written
        self.node = written.node
        if not all(value.plannable for value in self.node.defs):
            raise SpecError("the number of stacked rows is known only after the loop has run: pass max_trips")
        specs = [value.spec for value in self.node.defs if isinstance(value.spec, TensorSpec)]
        self.outputs = tuple(kinds.kind_of(spec) for spec in specs)
        differentiable = [_has_floating(values) for values in (written.operands, self.node.defs)]
        self.recorded = all(differentiable)
        self.keeps: tuple[tuple[int, ...], tuple[int, ...]] = (tuple(range(len(written.operands))), ())
        self._backends = backends
        self._executable: Executable | None = None
        rows = (
            zip(self.node.stacked_outputs, self.node.row_reversed, strict=True) if isinstance(self.node, While) else ()
        )
        self._backwards = {value for value, backwards in rows if backwards}

    @property
    def attrs(self) -> Mapping[str, WrittenControlFlow]:
        """The attributes of the command: the written program."""
        return {PROGRAM_ATTR: self.written}

    def run(self, inputs: Sequence[TensorStorage | None], pool: BlockPool) -> list[TensorStorage]:
        """Compute the loop or branch and return the results. Raises KernelError for a failed run."""
        executable = self._executable = self._executable or self._build_executable()
        given = {
            value.name: np.empty(0) if one is None else one.array
            for value, one in zip(self.written.operands, inputs, strict=True)
        }
        try:
            outputs = executable.views(given)
        except SubletError as error:
            raise KernelError(at_line(str(error))) from error
        results = zip(self.outputs, self.node.defs, outputs.values(), strict=True)
        return [_pad_missing_rows(pool, kind, array, value in self._backwards) for kind, value, array in results]

    def _build_executable(self) -> Executable:
        """Return an executable of the program."""
        names = NameGenerator()
        emit = Emitter(names, LiteralPool(names))
        operands = {value: Value(names.fresh(value.name), value.spec) for value in self.written.operands}
        made = {value: Value(names.fresh("result"), value.spec) for value in self.node.defs}
        node = copy_node(self.node, emit, {**operands, **made})
        weights = tuple(emit.literals.added)
        graph = Graph("program", tuple(operands.values()), (node,), tuple(made.values()), weights)
        inputs, outputs = (tuple(value.name for value in values) for values in (operands, made))
        model = finish_step(Model(graph, inputs=inputs, outputs=outputs))
        ready = model_with_kernels(CompileRequest(model, backend=list(self._backends)))
        return ready.to_executable(plan_memory(ready.model))


def _has_floating(values: Sequence[Value]) -> bool:
    """True if any of the values is of a floating-point type."""
    return any(isinstance(value.spec, TensorSpec) and value.spec.dtype in FLOATS for value in values)


def _pad_missing_rows(pool: BlockPool, kind: TensorKind, rows: Array, backwards: bool) -> TensorStorage:
    """Return a storage with a result, with zeros for rows of iterations not made because a check ended the loop.

    `backwards` is True for rows stacked from the end.
    """
    shape = kind.spec.shape
    if rows.shape == shape:
        return pool.store_copy(kind, rows)
    storage = pool.take(kind)
    storage.array[...] = 0
    computed = [
        slice(all_ - some, None) if backwards else slice(some) for all_, some in zip(shape, rows.shape, strict=True)
    ]
    storage.array[tuple(computed)] = rows
    return storage


def operands_and_attributes(node: Node) -> tuple[Sequence[Value | None], Mapping[str, Any]]:
    """Return the operands and attributes of the command of a node."""
    if not node.subgraphs:
        return node.inputs, node.attrs
    program = WrittenControlFlow(node)
    return program.operands, {PROGRAM_ATTR: program}


def node_of_command(
    emit: Emitter, command: Any, operands: Sequence[Value | None], results: Sequence[Value], source: str
) -> Node:
    """Return a command applied to values as a node. `results` are the results, and `source` is the user's line."""
    node: Node = command.node
    if not isinstance(command, ControlFlowCommand):
        return Node(results[0].name, node.op, tuple(operands), tuple(results), node.attrs, source)
    read = (value for value in operands if value is not None)
    names = dict(zip((*command.written.operands, *node.defs), (*read, *results), strict=True))
    return copy_node(node, emit, names)
