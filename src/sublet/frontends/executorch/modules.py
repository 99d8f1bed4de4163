"""Graph modules as ExecuTorch plans them: their nodes, the lives it found, and the modules that nodes run inside.

ExecuTorch plans the modules inside a module first, each by itself, and adds nodes to them afterwards. So what is known
of a module is kept when its turn comes, for the plan of the module around it, which places everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from sublet.base.errors import PlanError
from sublet.base.extras import require

Spec = Any
"""ExecuTorch's TensorSpec: what is placed. Two of them are the same only if they are one object."""
Node = Any
"""A node of an FX graph."""
GraphModule = Any


class Runs(Enum):
    """How often a node runs what is inside it: one of several modules once, or one module many times."""

    ONE_OF = "one of"
    AGAIN = "again"


@dataclass(frozen=True)
class Inner:
    """A module that a node runs.

    arguments  for each of its placeholders the tensor around it that it stands for; None for one of its own
    """

    name: str
    module: GraphModule
    arguments: tuple[Spec | None, ...]


@dataclass(frozen=True)
class Control:
    """A node of control flow: what it runs, and the tensors that it makes."""

    runs: Runs
    inner: tuple[Inner, ...]
    made: tuple[Spec | None, ...]


def exir(name: str) -> ModuleType:
    """A module of ExecuTorch. Raises MissingExtraError where it is not installed."""
    return require(f"executorch.exir.{name}", "executorch")


def specs_of(value: Any) -> tuple[Spec, ...]:
    """The tensors of a node; a view is its base."""
    if not hasattr(value, "meta"):
        return ()
    return tuple(base_of(spec) for spec in exir("memory_planning").get_node_tensor_specs(value))


def base_of(spec: Spec) -> Spec:
    """The tensor that ExecuTorch keeps a view's place in."""
    while (base := getattr(spec, "_base", None)) is not None:
        spec = base
    return spec


def leaves(tree: Any) -> Iterator[Any]:
    """What lies in nested lists and tuples, in order."""
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def one(value: Any) -> Spec | None:
    """The tensor that a node stands for; None where it is no tensor."""
    specs = specs_of(value)
    return specs[0] if len(specs) == 1 else None


def _tensor(value: Any) -> Spec | None:
    return base_of(value) if isinstance(value, exir("tensor").TensorSpec) else None


def control_of(module: GraphModule, node: Node) -> Control | None:
    """What a node runs inside; None for all that is no control flow."""
    higher = require("torch", "torch").ops.higher_order
    if node.op != "call_function" or node.target not in (higher.cond, higher.map_impl, higher.scan):
        return None
    made = tuple(_tensor(value) for value in leaves(node.meta.get("spec")))
    if node.target is higher.cond:
        _, *branches, operands = node.args
        bound = tuple(one(operand) for operand in operands)
        return Control(Runs.ONE_OF, tuple(_inside(module, branch, bound) for branch in branches), made)
    if node.target is higher.map_impl:
        body, mapped, operands = node.args
        held: Iterable[Spec | None] = [None] * len(mapped)
    else:
        body, carried, mapped, operands = node.args
        held = [*made[: len(carried)], *[None] * len(mapped)]
    arguments = (*held, *(one(operand) for operand in operands))
    return Control(Runs.AGAIN, (_inside(module, body, arguments),), made)


def _inside(module: GraphModule, node: Node, arguments: tuple[Spec | None, ...]) -> Inner:
    return Inner(node.target, getattr(module, node.target), arguments)


@dataclass(frozen=True)
class Known:
    """What is known of a module when its turn comes.

    nodes     as the lives count them
    placed    the tensors that ExecuTorch wants a place for
    lives     of each tensor the first and the last node that it is alive at
    padding   bytes that must lie behind the last tensor
    """

    module: GraphModule
    nodes: tuple[Node, ...]
    placed: tuple[Spec, ...]
    lives: dict[Spec, tuple[int, int]]
    padding: int

    @property
    def placeholders(self) -> tuple[Spec | None, ...]:
        """The tensors that stand for its arguments."""
        return tuple(one(node) for node in self.nodes if node.op == "placeholder")

    @property
    def returned(self) -> tuple[Spec | None, ...]:
        """The tensors that it gives back, None where it is no tensor."""
        output = next(node for node in reversed(self.nodes) if node.op == "output")
        return tuple(one(value) for value in leaves(output.args[0]))


def names_of(modules: Sequence[tuple[str, Known]]) -> dict[Spec, str]:
    """What people know tensors as: the node that makes each, with the modules it is in before it."""
    names: dict[Spec, str] = {}
    for name, each in modules:
        for node in each.nodes:
            for spec in specs_of(node):
                made = names.get(spec)
                if made is None or made.rpartition(".")[2].startswith("alloc"):
                    names[spec] = f"{name}{node.name}"
    return names


def known(module: GraphModule, placed: Sequence[Spec], padding: int) -> Known:
    """A module at its turn. Raises PlanError where a tensor to place has no life."""
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
                f"ExecuTorch: {spec} is to be placed, but no node makes or reads it: plan it by its own pass"
            )
    return Known(module, nodes, tuple(placed), lives, padding)
