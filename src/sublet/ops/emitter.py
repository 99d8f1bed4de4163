"""Emitter of nn nodes, with fresh names and inferred specs: for builders, gradient rules and passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sublet.base.errors import SpecError
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import all_names
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops.nn import command
from sublet.ops.nn.command import PREFIX, Command, spec_of
from sublet.ops.op import is_registered, lookup

CONSTANT_ELEMENTS = 16
"""Maximum elements of a literal of the root graph; larger constants are filled at run time."""


class LiteralPool:
    """The small constants of a program, without duplicates; the constants become weights of the root graph."""

    def __init__(self, names: NameGenerator, present: Iterable[Value] = ()) -> None:
        self._names = names
        self._present = {(v.spec, v.literal): v for v in present if v.literal is not None}
        self.added: list[Value] = []

    def constant_of(self, elements: tuple[int | float | bool, ...], spec: TensorSpec) -> Value:
        """Return the constant with the given elements and spec."""
        constant = self._present.get((spec, elements))
        if constant is None or repr(constant.literal) != repr(elements):  # 0.0 == -0.0 and 1 == True
            shown = str(elements[0]) if len(elements) == 1 else "list"
            constant = Value(self._names.fresh(f"const.{spec.dtype}.{shown}"), spec, elements)
            self._present[spec, elements] = constant
            self.added.append(constant)
        return constant


class Emitter:
    """A writer appending nodes to one level of a program; see `sublet.ops.op.Emit`.

    `scope` is the prefix for names of new nodes; `source` names the origin of new nodes in messages.
    """

    def __init__(self, names: NameGenerator, literals: LiteralPool, scope: str = "", source: str = "") -> None:
        self.names = names
        self.literals = literals
        self.scope = scope
        self.source = source
        self.nodes: list[Node] = []

    @classmethod
    def from_graph(cls, graph: Graph) -> Emitter:
        """Return an emitter for `graph`, the root of a program, appending after the last node."""
        names = NameGenerator(all_names(graph))
        emitter = cls(names, LiteralPool(names, graph.weights))
        emitter.nodes.extend(graph.nodes)
        return emitter

    def for_subgraph(self) -> Emitter:
        """Return an emitter for a sub-graph below the current level."""
        return Emitter(self.names, self.literals, self.scope, self.source)

    def __call__(self, op: str, *inputs: Value | None, **attrs: Attr) -> Value:
        outputs = self.all_outputs(op, *inputs, **attrs)
        if len(outputs) != 1:
            raise SpecError(f"{op} has {len(outputs)} outputs here, expected one")
        return outputs[0]

    def all_outputs(self, op: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """Append a node and return all outputs. Raises SpecError if the op rejects the inputs or attributes."""
        record = command(op) if op.startswith(PREFIX) or not is_registered(op.partition(".")[0]) else lookup(op)
        complete = record.complete_attributes(attrs) if isinstance(record, Command) else _user_attributes(op, attrs)
        least, most = record.inputs or (0, len(inputs))
        if not least <= len(inputs) <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise SpecError(f"{op} takes {allowed} inputs, got {len(inputs)}")
        if record.infer is None:
            raise SpecError(f"{op} has no shape inference. Pass `infer=` to sublet.command.")
        specs = record.infer([None if value is None else spec_of(value) for value in inputs], complete)
        hint = f"{self.scope}{op.removeprefix(PREFIX)}"
        outputs = tuple(
            Value(self.names.fresh(hint if i == 0 else f"{hint}.{i}"), spec) for i, spec in enumerate(specs)
        )
        name = PREFIX + record.name if isinstance(record, Command) else op
        self.nodes.append(Node(outputs[0].name, name, inputs, outputs, complete, self.source))
        return outputs

    def constant(self, number: float, like: Value, shape: tuple[int, ...] = ()) -> Value:
        """Return a constant with the type of `like`, with `number` as every element."""
        return self.full(number, TensorSpec(spec_of(like).dtype, shape))

    def full(self, number: float, spec: TensorSpec) -> Value:
        """Return a tensor with `number` as every element: a literal if small, else the output of an nn.fill node."""
        element = _element(number, spec.dtype)
        if spec.size <= CONSTANT_ELEMENTS:
            return self.literals.constant_of((element,) * spec.size, spec)
        return self("nn.fill", shape=spec.shape, dtype=spec.dtype.text, value=float(number))


def _user_attributes(op: str, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    """Return the attributes of a user-defined op in the form stored by nodes.

    Raises SpecError for a value other than a number, text or list.
    """
    stored: dict[str, Attr] = {}
    for key, content in attrs.items():
        stored[key] = tuple(content) if isinstance(content, list) else content
        items = content if isinstance(content, list | tuple) else (content,)
        if not all(isinstance(item, int | float | str | bytes) for item in items):
            raise SpecError(f"{op}: {key} = {content!r} must be a number, text, or a list of such")
    return stored


def _element(number: float, dtype: DType) -> int | float | bool:
    if dtype is DType.BOOL:
        return bool(number)
    return float(number) if dtype in (DType.F16, DType.BF16, DType.F32, DType.F64) else int(number)
