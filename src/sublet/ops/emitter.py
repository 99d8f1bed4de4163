"""Writes nodes of the nn dialect, with fresh names and inferred specs: for builders, gradient rules and passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops.nn import command
from sublet.ops.nn.command import PREFIX, Command, spec_of
from sublet.ops.op import lookup, registered

CONSTANT_ELEMENTS = 16
"""A larger constant is filled in at run time, a smaller one is a literal of the root graph."""


class Names:
    """Hands out names that are unique in a whole program."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    @classmethod
    def of(cls, graph: Graph) -> Names:
        """All that are not in a program: of values and nodes."""
        return cls([v.name for v in graph.values()] + [n.name for n in graph.walk()])

    def fresh(self, hint: str) -> str:
        """`hint`, or `hint_2`, `hint_3`, ... where that is taken."""
        if hint not in self._taken:
            self._taken.add(hint)
            return hint
        number = self._next.get(hint, 2)
        while f"{hint}_{number}" in self._taken:
            number += 1
        self._next[hint] = number + 1
        name = f"{hint}_{number}"
        self._taken.add(name)
        return name


class Literals:
    """The small constants of a program, each once; they become weights of the root graph."""

    def __init__(self, names: Names, present: Iterable[Value] = ()) -> None:
        self._names = names
        self._present = {(v.spec, v.literal): v for v in present if v.literal is not None}
        self.added: list[Value] = []

    def of(self, elements: tuple[int | float | bool, ...], spec: TensorSpec) -> Value:
        """The constant with these elements."""
        found = self._present.get((spec, elements))
        if found is None or repr(found.literal) != repr(elements):  # 0.0 == -0.0 and 1 == True, but differ
            shown = str(elements[0]) if len(elements) == 1 else "list"
            found = Value(self._names.fresh(f"const.{spec.dtype}.{shown}"), spec, elements)
            self._present[spec, elements] = found
            self.added.append(found)
        return found


class Emitter:
    """Appends nodes to one level of a program; see `sublet.ops.op.Emit`.

    `scope` comes before the names of new nodes, `source` says in messages where they come from.
    """

    def __init__(self, names: Names, literals: Literals, scope: str = "", source: str = "") -> None:
        self.names = names
        self.literals = literals
        self.scope = scope
        self.source = source
        self.nodes: list[Node] = []

    @classmethod
    def of(cls, graph: Graph) -> Emitter:
        """One that writes to `graph`, the root of a program, after its nodes."""
        names = Names.of(graph)
        emitter = cls(names, Literals(names, graph.weights))
        emitter.nodes.extend(graph.nodes)
        return emitter

    def inside(self) -> Emitter:
        """One for a sub-graph below this level."""
        return Emitter(self.names, self.literals, self.scope, self.source)

    def __call__(self, op: str, *inputs: Value | None, **attrs: Attr) -> Value:
        made = self.several(op, *inputs, **attrs)
        if len(made) != 1:
            raise SpecError(f"{op} has {len(made)} outputs here, not one")
        return made[0]

    def several(self, op: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """All outputs of a new node. Raises SpecError when the command does not take such inputs or attributes."""
        record = command(op) if op.startswith(PREFIX) or not registered(op.partition(".")[0]) else lookup(op)
        complete = record.completed(attrs) if isinstance(record, Command) else _plain(op, attrs)
        least, most = record.inputs or (0, len(inputs))
        if not least <= len(inputs) <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise SpecError(f"{op} takes {allowed} inputs, not {len(inputs)}")
        if record.infer is None:
            raise SpecError(f"nobody knows what {op} gives: tell it by `infer`, see sublet.command")
        specs = record.infer([None if value is None else spec_of(value) for value in inputs], complete)
        hint = f"{self.scope}{op.removeprefix(PREFIX)}"
        outputs = tuple(
            Value(self.names.fresh(hint if i == 0 else f"{hint}.{i}"), spec) for i, spec in enumerate(specs)
        )
        name = PREFIX + record.name if isinstance(record, Command) else op
        self.nodes.append(Node(outputs[0].name, name, inputs, outputs, complete, self.source))
        return outputs

    def constant(self, number: float, like: Value, shape: tuple[int, ...] = ()) -> Value:
        """A constant of the type of `like`, the same number everywhere."""
        return self.filled(number, TensorSpec(spec_of(like).dtype, shape))

    def filled(self, number: float, spec: TensorSpec) -> Value:
        """A tensor with the same number everywhere."""
        element = _element(number, spec.dtype)
        if spec.size <= CONSTANT_ELEMENTS:
            return self.literals.of((element,) * spec.size, spec)
        return self("nn.fill", shape=spec.shape, dtype=spec.dtype.text, value=float(number))


def _plain(op: str, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    """The attributes of an op of the user's own, as a node holds them. Raises SpecError for what none can be."""
    found: dict[str, Attr] = {}
    for key, content in attrs.items():
        found[key] = tuple(content) if isinstance(content, list) else content
        items = content if isinstance(content, list | tuple) else (content,)
        if not all(isinstance(item, int | float | str | bytes) for item in items):
            raise SpecError(f"{op}: {key} = {content!r} must be a number, text, or a list of such")
    return found


def _element(number: float, dtype: DType) -> int | float | bool:
    if dtype is DType.BOOL:
        return bool(number)
    return float(number) if dtype in (DType.F16, DType.BF16, DType.F32, DType.F64) else int(number)
