"""Conversion of graph modules to steps, for the replay of a plan before ExecuTorch emits the program.

The conversion follows ExecuTorch's emitter: an operator writes the `out` arguments; a branch moves the returned tensor
to the branch's result; a view of a placed tensor is a tensor at the same place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import ModuleType
from typing import Any

from sublet.base.errors import PlanError
from sublet.base.optional_imports import require
from sublet.integrations.executorch.instructions import ByteRange, MethodProgram, MethodStep, MethodTensor

# Graph modules as planned by ExecuTorch: nodes, node live ranges, and modules run by control flow.
#
# ExecuTorch plans inner modules first, each separately, and then adds nodes to the inner modules. So the nodes and live
# ranges of a module are recorded at the time of the module's plan. The plan of the outer module, which places all
# tensors, uses the records.

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


PlaceOf = Callable[[Spec], tuple[int, int] | None]
"""A function returning (memory, offset) of a tensor, None for a tensor without a place."""


def program_of(
    module: GraphModule, names: Mapping[Spec, str], place: PlaceOf, signature: Any, memories: Sequence[int]
) -> MethodProgram:
    """Return the tensors and steps of a method. `memories` are the sizes of the memories in the plan, in bytes."""
    builder = _ProgramBuilder(names, place)
    state, inputs = exir_module("memory_planning").__dict__["_is_mutable_buffer"], []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            is_state = bool(state(node, signature))
            for spec in specs_of(node):
                number = builder.mark_given(spec, is_state)
                inputs += [] if is_state else [number]
    builder.add_step("the caller passes the inputs", writes=inputs)
    builder.add_module(module)
    return MethodProgram("the module", tuple(builder.tensors), tuple(builder.steps), dict(enumerate(memories)))


class _ProgramBuilder:
    """The tensors and steps of a method under construction."""

    def __init__(self, names: Mapping[Spec, str], place: PlaceOf) -> None:
        self._names, self._place = names, place
        self._numbers: dict[Spec, int] = {}
        self._views: dict[Node, int] = {}
        self.tensors: list[MethodTensor] = []
        self.steps: list[MethodStep] = []

    def mark_given(self, spec: Spec, kept: bool) -> int:
        """Mark a tensor as having content when the program begins, and return the tensor's number."""
        number = self._number_of(spec)
        self.tensors[number] = replace(self.tensors[number], given=True, kept=kept)
        return number

    def add_module(self, module: GraphModule) -> list[int | None]:
        """Append the steps of a module; return the returned tensors, None for a returned value that is no tensor."""
        returned: list[int | None] = []
        for node in list(module.graph.nodes):
            control = control_of(module, node)
            if node.op == "output":
                returned = [self._tensor_of(value) for value in leaves_of(node.args[0])]
            elif node.op == "get_attr":
                for spec in specs_of(node):
                    self.mark_given(spec, kept=False)
            elif control is not None:
                self._add_branch(node, control) if control.runs is ControlKind.ONE_OF else self._add_loop(node, control)
            elif node.op == "call_function":
                self._add_call(node)
        self.add_step("return", reads=[number for number in returned if number is not None])
        return returned

    def _add_call(self, node: Node) -> None:
        """Append the step of an operator call."""
        memory, planning = exir_module("memory"), exir_module("memory_planning").__dict__
        if node.target in (memory.alloc, memory.free, operator.getitem):
            return
        if node.target is memory.view:
            self._add_view(node)
            return
        outs: set[str] = set()
        if planning["_is_out_var_node"](node):
            outs = set(exir_module("operator.convert").get_out_args_from_opoverload(node.target))
        read = (*node.args, *(value for name, value in node.kwargs.items() if name not in outs))
        self.add_step(
            node.name, reads=self._tensors_of(read), writes=[self._number_of(spec) for spec in specs_of(node)]
        )

    def _add_view(self, node: Node) -> None:
        """Append a view: a view with a place is read at that place, a view without a place is a name of the base."""
        base, spec = self._tensor_of(node.args[0]), specs_of(node)[0]
        assert base is not None
        own = self._bytes_of(spec) if node.meta["spec"].is_static_shape_tensor else None
        fixed, tensor = own is not None, self.tensors[self._number_of(spec)]
        self._views[node] = len(self.tensors)
        self.tensors.append(MethodTensor(f"{tensor.name}.{node.name}", tensor.nbytes, own, family=tensor.family))
        pair = ((base, self._views[node]),)
        self.add_step(node.name, views=pair) if fixed else self.add_step(node.name, moves=pair)

    def _add_branch(self, node: Node, control: ControlFlow) -> None:
        """Append a branch: a jump to each inner module, and moves of the returned tensors to the results."""
        jump = len(self.steps)
        self.add_step(node.name, reads=self._tensors_of(node.args[:1]))
        begins, ends = [], []
        results = [None if spec is None else self._number_of(spec) for spec in control.results]
        for inner in control.inner:
            begins.append(len(self.steps))
            self._bind_placeholders(inner)
            returned = self.add_module(inner.module)
            moves = [
                (s, t) for s, t in zip(returned, results, strict=True) if s is not None and t is not None and s != t
            ]
            self.add_step(f"{node.name}, end of {inner.name}", moves=moves)
            ends.append(len(self.steps) - 1)
        self.steps[jump] = replace(self.steps[jump], then=tuple(begins))
        for end in ends:
            self.steps[end] = replace(self.steps[end], then=(len(self.steps),))

    def _add_loop(self, node: Node, control: ControlFlow) -> None:
        """Append a loop: every iteration copies carried tensors, fills stacked tensors, and reads sliced tensors."""
        (inner,) = control.inner
        results = [None if spec is None else self._number_of(spec) for spec in control.results]
        carried_inputs = list(node.args[1]) if len(node.args) > 3 else []
        carried, stacked = _without_none(results[: len(carried_inputs)]), _without_none(results[len(carried_inputs) :])
        mapped = node.args[2] if carried_inputs or len(node.args) > 3 else node.args[1]
        self.add_step(node.name, reads=self._tensors_of(carried_inputs), writes=carried, begins=stacked)
        head = len(self.steps)
        self._bind_placeholders(inner)
        slices = [specs_of(p)[0] for p in _placeholders(inner) if specs_of(p) and specs_of(p)[0] not in self._numbers]
        self.add_step(
            f"{node.name}, a slice", reads=self._tensors_of(mapped), writes=[self._number_of(spec) for spec in slices]
        )
        returned = self.add_module(inner.module)
        self.add_step(
            f"{node.name}, carried tensors", reads=_without_none(returned[: len(carried_inputs)]), writes=carried
        )
        self.add_step(f"{node.name}, a row", reads=_without_none(returned[len(carried_inputs) :]), fills=stacked)
        self.steps[-1] = replace(self.steps[-1], then=(head, len(self.steps)))

    def _bind_placeholders(self, inner: InnerModule) -> None:
        """Bind the placeholders of an inner module to tensors of the outer module."""
        for node, argument in zip(_placeholders(inner), inner.arguments, strict=True):
            for spec in specs_of(node):
                if argument is not None:
                    self._numbers[spec] = self._numbers[argument]

    def _tensors_of(self, values: Iterable[Any]) -> list[int]:
        """Return the numbers of the tensors in nested values."""
        return _without_none(self._tensor_of(value) for value in leaves_of(list(values)))

    def _tensor_of(self, value: Any) -> int | None:
        """Return the number of the tensor computed by a node; None if the node is no single tensor."""
        if value in self._views:
            return self._views[value]
        if getattr(value, "target", None) is operator.getitem:
            spec = list(leaves_of(value.args[0].meta["spec"]))[value.args[1]]
            return self._number_of(spec) if spec in self._numbers else None
        specs = specs_of(value)
        return self._number_of(specs[0]) if len(specs) == 1 else None

    def _number_of(self, spec: Spec) -> int:
        """Return the number of a tensor, adding the tensor on first use."""
        if spec not in self._numbers:
            family = self._number_of(spec.storage_base) if spec.storage_base is not None else -1
            if family >= 0:  # the base belongs to the family too
                family = max(family, self.tensors[family].family)
                base = self._numbers[spec.storage_base]
                self.tensors[base] = replace(self.tensors[base], family=family)
            self._numbers[spec] = len(self.tensors)
            name, nbytes = self._names.get(spec, f"tensor {len(self.tensors)}"), int(spec.allocated_memory)
            own, alignment = self._bytes_of(spec), int(spec.alignment)
            self.tensors.append(MethodTensor(name, nbytes, own, family=family, alignment=alignment))
        return self._numbers[spec]

    def _bytes_of(self, spec: Spec) -> ByteRange | None:
        """Return the bytes the plan gives the tensor, None without a place."""
        placed = self._place(spec)
        return None if placed is None else ByteRange(placed[0], placed[1], placed[1] + int(spec.allocated_memory))

    def add_step(self, what: str, **happens: Any) -> None:
        """Append a step reached from the previous step and continuing with the next step."""
        then = (len(self.steps) + 1,)
        self.steps.append(MethodStep(what, then=then, **{kind: tuple(several) for kind, several in happens.items()}))


def _placeholders(inner: InnerModule) -> list[Node]:
    return [node for node in inner.module.graph.nodes if node.op == "placeholder"]


def _without_none(numbers: Iterable[int | None]) -> list[int]:
    return [number for number in numbers if number is not None]
