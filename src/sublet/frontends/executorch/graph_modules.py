"""Graph modules as planned by ExecuTorch: nodes, node live ranges, and modules run by control flow.

ExecuTorch plans inner modules first, each separately, and then adds nodes to the inner modules. So the nodes and live
ranges of a module are recorded at the time of the module's plan. The plan of the outer module, which places all
tensors, uses the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from sublet.base.errors import PlanError
from sublet.base.optional_imports import require

Spec = Any
"""ExecuTorch's TensorSpec: the object to place. Specs are compared by identity."""
Node = Any
"""A node of an FX graph."""
GraphModule = Any


class ControlKind(Enum):
    """The control flow of a node: a choice among several modules, run once, or a single module run repeatedly."""

    ONE_OF = "one of"
    REPEATED = "again"


@dataclass(frozen=True)
class InnerModule:
    """A module run by a node.

    arguments  for each placeholder the outer tensor bound to the placeholder; None for a placeholder with bytes
    """

    name: str
    module: GraphModule
    arguments: tuple[Spec | None, ...]


@dataclass(frozen=True)
class ControlFlow:
    """A control-flow node: the inner modules, and the result tensors."""

    runs: ControlKind
    inner: tuple[InnerModule, ...]
    results: tuple[Spec | None, ...]


def exir_module(name: str) -> ModuleType:
    """Return a module of `executorch.exir`. Raises MissingExtraError if ExecuTorch is not installed."""
    return require(f"executorch.exir.{name}", "executorch")


def specs_of(value: Any) -> tuple[Spec, ...]:
    """Return the tensors of a node, with views replaced by the base."""
    if not hasattr(value, "meta"):
        return ()
    return tuple(base_of(spec) for spec in exir_module("memory_planning").get_node_tensor_specs(value))


def base_of(spec: Spec) -> Spec:
    """Return the tensor holding a view's place."""
    while (base := getattr(spec, "_base", None)) is not None:
        spec = base
    return spec


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield the elements of nested lists and tuples, in order."""
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from leaves_of(branch)
    else:
        yield tree


def single_tensor_of(value: Any) -> Spec | None:
    """Return the single tensor of a node; None for any other node."""
    specs = specs_of(value)
    return specs[0] if len(specs) == 1 else None


def _base_tensor_of(value: Any) -> Spec | None:
    """Return the base tensor of a spec; None for any other value."""
    return base_of(value) if isinstance(value, exir_module("tensor").TensorSpec) else None


def control_of(module: GraphModule, node: Node) -> ControlFlow | None:
    """Return the control flow of a node; None for an ordinary node."""
    higher = require("torch", "torch").ops.higher_order
    if node.op != "call_function" or node.target not in (higher.cond, higher.map_impl, higher.scan):
        return None
    results = tuple(_base_tensor_of(value) for value in leaves_of(node.meta.get("spec")))
    if node.target is higher.cond:
        _, *branches, operands = node.args
        bound = tuple(single_tensor_of(operand) for operand in operands)
        return ControlFlow(
            ControlKind.ONE_OF, tuple(_inner_module(module, branch, bound) for branch in branches), results
        )
    if node.target is higher.map_impl:
        body, mapped, operands = node.args
        leading: Iterable[Spec | None] = [None] * len(mapped)
    else:
        body, carried, mapped, operands = node.args
        leading = [*results[: len(carried)], *[None] * len(mapped)]
    arguments = (*leading, *(single_tensor_of(operand) for operand in operands))
    return ControlFlow(ControlKind.REPEATED, (_inner_module(module, body, arguments),), results)


def _inner_module(module: GraphModule, node: Node, arguments: tuple[Spec | None, ...]) -> InnerModule:
    return InnerModule(node.target, getattr(module, node.target), arguments)


@dataclass(frozen=True)
class PlannedModule:
    """The record of a module at the time of the module's plan.

    nodes         the nodes, in the numbering of `node_ranges`
    placed        the tensors to be placed
    node_ranges   the first and the last node of each tensor's live range
    padding       bytes required behind the last tensor
    """

    module: GraphModule
    nodes: tuple[Node, ...]
    placed: tuple[Spec, ...]
    node_ranges: dict[Spec, tuple[int, int]]
    padding: int

    @property
    def placeholders(self) -> tuple[Spec | None, ...]:
        """The tensor of each placeholder, None for a placeholder that is no tensor."""
        return tuple(single_tensor_of(node) for node in self.nodes if node.op == "placeholder")

    @property
    def returned_tensors(self) -> tuple[Spec | None, ...]:
        """The returned tensors, None for a returned value that is no tensor."""
        output = next(node for node in reversed(self.nodes) if node.op == "output")
        return tuple(single_tensor_of(value) for value in leaves_of(output.args[0]))


def tensor_names_of(modules: Sequence[tuple[str, PlannedModule]]) -> dict[Spec, str]:
    """Return the name of each tensor: the name of the defining node, prefixed by the enclosing modules."""
    names: dict[Spec, str] = {}
    for name, each in modules:
        for node in each.nodes:
            for spec in specs_of(node):
                current = names.get(spec)
                if current is None or current.rpartition(".")[2].startswith("alloc"):
                    names[spec] = f"{name}{node.name}"
    return names


def planned_module(module: GraphModule, placed: Sequence[Spec], padding: int) -> PlannedModule:
    """Return the record of a module. Raises PlanError for a tensor to place without a live range."""
    nodes = tuple(module.graph.nodes)
    lives = {}
    for node in nodes:
        for spec in specs_of(node):
            begin, end = spec.lifetime
            if begin is not None and end is not None:
                lives[spec] = (int(begin), int(end))
    for spec in placed:
        if spec not in lives:
            raise PlanError(
                f"ExecuTorch: {spec} has no live range: no node defines or reads it. Plan it in a separate pass"
            )
    return PlannedModule(module, nodes, tuple(placed), lives, padding)
