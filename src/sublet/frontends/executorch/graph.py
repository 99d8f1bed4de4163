"""The graph modules of a program as steps, so that a plan can be replayed before ExecuTorch has emitted it.

It follows what ExecuTorch's emitter does: an operator writes its `out` arguments, what a branch gives back is moved to
what comes out of it, a view of a tensor with a place is a tensor at that place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sublet.frontends.executorch.modules import (
    Control,
    GraphModule,
    Inner,
    Node,
    Runs,
    Spec,
    control_of,
    exir,
    leaves,
    specs_of,
)
from sublet.frontends.executorch.program import Bytes, Program, Step, Tensor

Place = Callable[[Spec], tuple[int, int] | None]
"""The memory of a tensor and its offset there; None where it has no place."""


def program_of(
    module: GraphModule, names: Mapping[Spec, str], place: Place, signature: Any, memories: Sequence[int]
) -> Program:
    """The steps of a method and its tensors, by their names. `memories` are the sizes that the plan tells."""
    written = _Writing(names, place)
    state, inputs = exir("memory_planning").__dict__["_is_mutable_buffer"], []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            kept = bool(state(node, signature))
            for spec in specs_of(node):
                number = written.given(spec, kept)
                inputs += [] if kept else [number]
    written.add("the caller gives the inputs", writes=inputs)
    written.module(module)
    return Program("the module", tuple(written.tensors), tuple(written.steps), dict(enumerate(memories)))


class _Writing:
    def __init__(self, names: Mapping[Spec, str], place: Place) -> None:
        self._names, self._place = names, place
        self._numbers: dict[Spec, int] = {}
        self._views: dict[Node, int] = {}
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []

    def given(self, spec: Spec, kept: bool) -> int:
        """A tensor whose content is there when the program begins."""
        number = self._number(spec)
        self.tensors[number] = replace(self.tensors[number], given=True, kept=kept)
        return number

    def module(self, module: GraphModule) -> list[int | None]:
        """The steps of a module; gives back what it returns, None where that is no tensor."""
        returned: list[int | None] = []
        for node in list(module.graph.nodes):
            control = control_of(module, node)
            if node.op == "output":
                returned = [self._value(value) for value in leaves(node.args[0])]
            elif node.op == "get_attr":
                for spec in specs_of(node):
                    self.given(spec, kept=False)
            elif control is not None:
                self._one_of(node, control) if control.runs is Runs.ONE_OF else self._again(node, control)
            elif node.op == "call_function":
                self._call(node)
        self.add("return", reads=[number for number in returned if number is not None])
        return returned

    def _call(self, node: Node) -> None:
        memory, planning = exir("memory"), exir("memory_planning").__dict__
        if node.target in (memory.alloc, memory.free, operator.getitem):
            return
        if node.target is memory.view:
            self._view(node)
            return
        outs: set[str] = set()
        if planning["_is_out_var_node"](node):
            outs = set(exir("operator.convert").get_out_args_from_opoverload(node.target))
        read = (*node.args, *(value for name, value in node.kwargs.items() if name not in outs))
        self.add(node.name, reads=self._values(read), writes=[self._number(spec) for spec in specs_of(node)])

    def _view(self, node: Node) -> None:
        """A view of what has a place is read there, whatever its base stands for; any other is a name."""
        base, spec = self._value(node.args[0]), specs_of(node)[0]
        assert base is not None
        own = self._own(spec) if node.meta["spec"].is_static_shape_tensor else None
        fixed, tensor = own is not None, self.tensors[self._number(spec)]
        self._views[node] = len(self.tensors)
        self.tensors.append(Tensor(f"{tensor.name}.{node.name}", tensor.nbytes, own, family=tensor.family))
        pair = ((base, self._views[node]),)
        self.add(node.name, views=pair) if fixed else self.add(node.name, moves=pair)

    def _one_of(self, node: Node, control: Control) -> None:
        """A jump to one of several modules; what it returns is moved to what comes out."""
        jump = len(self.steps)
        self.add(node.name, reads=self._values(node.args[:1]))
        begins, ends = [], []
        made = [None if spec is None else self._number(spec) for spec in control.made]
        for inner in control.inner:
            begins.append(len(self.steps))
            self._bind(inner)
            given = self.module(inner.module)
            moves = [(s, t) for s, t in zip(given, made, strict=True) if s is not None and t is not None and s != t]
            self.add(f"{node.name}, end of {inner.name}", moves=moves)
            ends.append(len(self.steps) - 1)
        self.steps[jump] = replace(self.steps[jump], then=tuple(begins))
        for end in ends:
            self.steps[end] = replace(self.steps[end], then=(len(self.steps),))

    def _again(self, node: Node, control: Control) -> None:
        """A loop: what it carries is copied, what it stacks is filled, what it takes a slice of is read every time."""
        (inner,) = control.inner
        made = [None if spec is None else self._number(spec) for spec in control.made]
        first = list(node.args[1]) if len(node.args) > 3 else []
        carried, stacked = _tensors(made[: len(first)]), _tensors(made[len(first) :])
        mapped = node.args[2] if first or len(node.args) > 3 else node.args[1]
        self.add(node.name, reads=self._values(first), writes=carried, begins=stacked)
        head = len(self.steps)
        self._bind(inner)
        own = [specs_of(p)[0] for p in _placeholders(inner) if specs_of(p) and specs_of(p)[0] not in self._numbers]
        self.add(f"{node.name}, a slice", reads=self._values(mapped), writes=[self._number(spec) for spec in own])
        given = self.module(inner.module)
        self.add(f"{node.name}, what is carried", reads=_tensors(given[: len(first)]), writes=carried)
        self.add(f"{node.name}, a row", reads=_tensors(given[len(first) :]), fills=stacked)
        self.steps[-1] = replace(self.steps[-1], then=(head, len(self.steps)))

    def _bind(self, inner: Inner) -> None:
        """Placeholders that stand for tensors around a module."""
        for node, argument in zip(_placeholders(inner), inner.arguments, strict=True):
            for spec in specs_of(node):
                if argument is not None:
                    self._numbers[spec] = self._numbers[argument]

    def _values(self, values: Iterable[Any]) -> list[int]:
        return _tensors(self._value(value) for value in leaves(list(values)))

    def _value(self, value: Any) -> int | None:
        """The tensor that a node stands for."""
        if value in self._views:
            return self._views[value]
        if getattr(value, "target", None) is operator.getitem:
            spec = list(leaves(value.args[0].meta["spec"]))[value.args[1]]
            return self._number(spec) if spec in self._numbers else None
        specs = specs_of(value)
        return self._number(specs[0]) if len(specs) == 1 else None

    def _number(self, spec: Spec) -> int:
        if spec not in self._numbers:
            family = self._number(spec.storage_base) if spec.storage_base is not None else -1
            if family >= 0:  # the base is of the family too
                family = max(family, self.tensors[family].family)
                base = self._numbers[spec.storage_base]
                self.tensors[base] = replace(self.tensors[base], family=family)
            self._numbers[spec] = len(self.tensors)
            name, nbytes = self._names.get(spec, f"tensor {len(self.tensors)}"), int(spec.allocated_memory)
            own, alignment = self._own(spec), int(spec.alignment)
            self.tensors.append(Tensor(name, nbytes, own, family=family, alignment=alignment))
        return self._numbers[spec]

    def _own(self, spec: Spec) -> Bytes | None:
        placed = self._place(spec)
        return None if placed is None else Bytes(placed[0], placed[1], placed[1] + int(spec.allocated_memory))

    def add(self, what: str, **happens: Any) -> None:
        """A step that is come to from the one before, and goes on to the next."""
        then = (len(self.steps) + 1,)
        self.steps.append(Step(what, then=then, **{kind: tuple(several) for kind, several in happens.items()}))


def _placeholders(inner: Inner) -> list[Node]:
    return [node for node in inner.module.graph.nodes if node.op == "placeholder"]


def _tensors(numbers: Iterable[int | None]) -> list[int]:
    return [number for number in numbers if number is not None]
