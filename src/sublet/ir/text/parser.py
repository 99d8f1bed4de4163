"""The parser of the text form written by `printer`; docs/text_form.md is the grammar by example.

Every mistake in a text is a TextError with the line. `verify` judges the meaning of a graph (arities, specs, scopes of
values): the parser takes the specs of a text without checking them against ops.
"""

from __future__ import annotations

import math
import re

from sublet.base.errors import SubletError
from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model
from sublet.ir.text.printer import default_node_name
from sublet.ir.text.tokens import MAX_SHOWN, Cursor, truncate

Scalar = int | float | bool | str | bytes

MAX_DEPTH = 100
"""Nesting levels of sub-graphs. Recursive passes over a graph must not exhaust the stack; the parser refuses more."""


def parse(text: str, source: str = "<text>") -> Graph:
    """Return the graph described by a text. Raises TextError with the line of the first mistake.

    A graph has no other names for its outputs: `as "mean"` is dropped. `sublet.read_model` of a file keeps the names.
    """
    return parse_model(text, source).graph


def parse_model(text: str, source: str = "<text>") -> Model:
    """Return the graph described by a text, with the names of its outputs. Raises TextError as `parse`."""
    parser = _Parser(text, source)
    graph = parser.graph()
    parser.expect_end()
    names = tuple(parser.output_names.get(i, value.name) for i, value in enumerate(graph.outputs))
    return Model(graph, outputs=names if parser.output_names else ())


def _is_element_of(item: Scalar, dtype: DType) -> bool:
    """True if `item` is an element of a tensor of `dtype`; the text form has no complex elements."""
    if dtype is DType.BOOL or isinstance(item, bool):
        return dtype is DType.BOOL and isinstance(item, bool)
    if dtype.text.startswith("i"):
        return isinstance(item, int) and -(1 << dtype.bits - 1) <= item < 1 << dtype.bits - 1
    if dtype.text.startswith("u"):
        return isinstance(item, int) and 0 <= item < 1 << dtype.bits
    return isinstance(item, int | float) and dtype not in (DType.C64, DType.C128)


class _Parser(Cursor):
    """A recursive-descent parser, with all values defined before the current position.

    Value names are unique in the program.
    """

    def __init__(self, text: str, source: str):
        super().__init__(text, source)
        self.depth = 0
        self.values: dict[str, Value] = {}
        self.output_names: dict[int, str] = {}

    # -- values and types -----------------------------------------------------------------------

    def use(self) -> Value:
        name = self.name("%")
        if name not in self.values:
            raise self.error_at_last("is not defined before this line")
        return self.values[name]

    def use_or_omitted(self) -> Value | None:
        return None if self.accept("_") else self.use()

    def declare(self) -> Value:
        name = self.name("%")
        if name in self.values:
            raise self.error_at_last("is defined twice")
        self.expect(":")
        spec = self.spec()
        literal = None
        if isinstance(spec, TensorSpec) and self.next.text == "=" and self.peek(1) == "[":
            self.expect("=")
            literal = self.literal(spec.dtype)
        value = Value(name, spec, literal)
        self.values[name] = value
        return value

    def literal(self, dtype: DType) -> tuple[int | float | bool, ...]:
        def element() -> int | float | bool:
            mark = self.at
            item = self.scalar()
            if isinstance(item, str | bytes) or not _is_element_of(item, dtype):
                self.at = mark
                raise self.error_at_next(f"{truncate(self.next.text)} is not an element of {dtype}")
            return item

        self.expect("[")
        items = self.sequence(element, "]")
        self.expect("]")
        return tuple(items)

    def declare_or_omitted(self) -> Value | None:
        return None if self.accept("_") else self.declare()

    def spec(self) -> Spec:
        mark = self.at
        word = self.take("word", "a type such as f32[2,3]")
        if word == "outside":
            self.expect("(")
            kind = self.string("the type as a string")
            self.expect(",")
            reason = self.string("the reason as a string")
            self.expect(")")
            return Unplannable.parse(kind, reason)
        self.expect("[")
        shape = self.sequence(self.integer, "]")
        self.expect("]")
        try:
            return TensorSpec(DType.parse(truncate(word)), tuple(shape))
        except SubletError as error:
            self.at = mark
            raise self.error_at_next(truncate(str(error), 10 * MAX_SHOWN)) from None

    # -- attributes -----------------------------------------------------------------------------

    def attr(self) -> Attr:
        if not self.accept("["):
            return self.scalar()
        mark = self.at
        items = self.sequence(self.scalar, "]")
        if {type(item) for item in items} not in ({int}, {float}, {int, float}, {str}, set()):
            self.at = mark
            raise self.error_at_next("a list holds numbers only or strings only")
        self.expect("]")
        return tuple(items)  # type: ignore[return-value]

    def scalar(self) -> Scalar:
        kind, text, _ = self.next
        if kind == "string":
            return self.string("a string")
        if kind == "number" and re.fullmatch("-?[0-9]+", text):
            return self.integer()
        if kind == "number":
            self.at += 1
            # All nans are one object, so that two parses of a text are equal.
            return math.nan if text.endswith("nan") else float(text)
        if text in ("true", "false"):
            self.at += 1
            return text == "true"
        if self.accept("bytes"):
            return self.raw()
        raise self.unexpected_token("a value")

    def raw(self) -> bytes:
        self.expect("(")
        digits = self.string("hexadecimal digits")
        try:
            decoded = bytes.fromhex(digits)
        except ValueError:
            raise self.error_at_last("is not an even number of hexadecimal digits") from None
        self.expect(")")
        return decoded

    def attrs(self) -> dict[str, Attr]:
        attributes: dict[str, Attr] = {}

        def attribute() -> None:
            mark = self.at
            key = self.key()
            if key in attributes:
                self.at = mark
                raise self.error_at_next(f"the attribute {truncate(self.next.text)} occurs twice")
            self.expect("=")
            attributes[key] = self.attr()

        if self.accept("{"):
            self.sequence(attribute, "}")
            self.expect("}")
        return attributes

    def node_name(self, outputs: tuple[Value | None, ...]) -> str:
        return self.name("@") if self.next.text.startswith("@") else default_node_name(outputs)

    # -- graphs and nodes -----------------------------------------------------------------------

    def graph(self) -> Graph:
        self.expect("graph")
        name = self.name("@")
        self.expect("(")
        inputs = self.sequence(self.declare, ")")
        self.expect(")")
        self.expect("{")
        weights = self.sequence_of_weights() if self.accept("weights") else []
        nodes = self.nodes("update", "return")
        updates: list[tuple[Value, Value]] = []
        if self.token_at(self.at - 1).text == "update":
            updates = self.sequence(self.update, "return")
            self.expect("return")
        outputs = self.outputs()
        return Graph(name, tuple(inputs), nodes, tuple(outputs), tuple(weights), tuple(updates))

    def outputs(self) -> list[Value]:
        """Return the outputs of the program up to the closing brace, and keep the names after `as`."""
        outputs: list[Value] = []
        taken: dict[str, bool] = {}  # the names of earlier outputs: True for a name after `as`

        def output() -> None:
            value = self.use()
            name = self.string("the name of the output as a string") if self.accept("as") else value.name
            if taken.get(name, False) or (name in taken and name != value.name):
                raise self.error_at_last("is the name of another output")
            taken[name] = name != value.name
            if name != value.name:
                self.output_names[len(outputs)] = name
            outputs.append(value)

        self.sequence(output, "}")
        self.expect("}")
        return outputs

    def update(self) -> tuple[Value, Value]:
        target = self.use()
        self.expect("=")
        return target, self.use()

    def sequence_of_weights(self) -> list[Value]:
        weights = [self.declare()]
        while self.accept(","):
            weights.append(self.declare())
        return weights

    def nodes(self, *ends: str) -> tuple[Node, ...]:
        """Return the nodes up to any of the words `ends`, and consume the word."""
        nodes: list[Node] = []
        while self.next.text not in ends:
            nodes.append(self.node())
        self.at += 1
        return tuple(nodes)

    def node(self) -> Node:
        line = self.next.line
        known = dict(self.values) if self.opens_subgraph() else None
        outputs = tuple(self.sequence(self.declare_or_omitted, "="))
        self.expect("=")
        if known is not None:
            # The results of a loop or branch are defined after its sub-graphs.
            results, self.values = self.values, known
            node = self.control(outputs)
            self.values |= {v.name: results[v.name] for v in outputs if v is not None}
            return node
        op = self.key()
        if op in ("while", "case"):
            raise self.error_at_last("is not an op: write a loop or a branch without quotes")
        self.expect("(")
        inputs = tuple(self.sequence(self.use_or_omitted, ")"))
        self.expect(")")
        attrs = self.attrs()
        scratch = self.declare() if self.accept("scratch") else None
        again = self.accept("again")
        name, source = self.node_name(outputs), f"{self.source}:{line}"
        return Node(name, op, inputs, outputs, attrs, source=source, scratch=scratch, again=again)

    def control(self, outputs: tuple[Value | None, ...]) -> Node:
        if self.depth == MAX_DEPTH:
            raise self.error_at_next(f"sub-graphs are nested more than {MAX_DEPTH} deep")
        self.depth += 1
        node = self.while_(outputs) if self.accept("while") else self.case_(outputs)
        self.depth -= 1
        return node

    def opens_subgraph(self) -> bool:
        """True if the node at the current position is a while or a case: looks ahead to the word after its `=`."""
        depth, at = 0, self.at
        while (token := self.token_at(at)).kind != "end":
            kind, text, _ = token
            at += 1
            depth += (text in "([{") - (text in ")]}") if kind == "mark" else 0
            # "= [" starts the literal of an output.
            if text == "=" and kind == "mark" and depth == 0 and self.token_at(at).text != "[":
                return self.token_at(at).text in ("while", "case")
        return False

    def while_(self, outputs: tuple[Value | None, ...]) -> While:
        line = self.next.line
        self.expect("(")
        counter = self.declare()
        self.expect(";")
        carried = self.sequence(self.carry, ";")
        self.expect(";")
        sliced = self.sequence(self.slice, ")")
        self.expect(")")
        attrs = self.attrs()
        name = self.node_name(outputs)
        self.expect("body")
        body_name = self.name("@")
        self.expect("{")
        before = self.nodes("continue")
        self.expect("if")
        condition = self.use()
        after = self.nodes("next")
        updates = self.sequence(self.use, ";")
        if len(updates) != len(carried):
            raise self.error_at_next(f"the loop carries {len(carried)} value(s), its next has {len(updates)} update(s)")
        self.expect(";")
        rows = self.sequence(self.row, "}")
        self.expect("}")
        parameters = (counter, *(p for p, _ in carried), *(value for value, *_ in sliced))
        results = (*updates, *(row for row, *_ in rows))
        return While(
            name,
            "while",
            (*(init for _, init in carried), *(sequence for _, sequence, *_ in sliced)),
            outputs,
            attrs,
            source=f"{self.source}:{line}",
            body=Graph(body_name, parameters, before + after, results),
            condition=condition,
            check=len(before),
            carried=len(carried),
            slice_axes=tuple(axis for *_, axis, _ in sliced),
            slice_reversed=tuple(backwards for *_, backwards in sliced),
            row_axes=tuple(axis for _, axis, _ in rows),
            row_reversed=tuple(backwards for *_, backwards in rows),
        )

    def carry(self) -> tuple[Value, Value]:
        parameter = self.declare()
        self.expect("=")
        return parameter, self.use()

    def slice(self) -> tuple[Value, Value, int, bool]:
        value = self.declare()
        self.expect("in")
        return value, self.use(), *self.axis()

    def row(self) -> tuple[Value, int, bool]:
        return self.use(), *self.axis()

    def axis(self) -> tuple[int, bool]:
        self.expect("axis")
        return self.integer(), self.accept("reversed")

    def case_(self, outputs: tuple[Value | None, ...]) -> CaseOf:
        line = self.next.line
        self.expect("case")
        index = self.use()
        fallbacks: list[Value] = []
        if self.accept("else"):
            fallbacks.append(self.use())
            while self.accept(","):
                fallbacks.append(self.use())
        # The block of arms opens with "{" too; attributes are `key = value`.
        attrs = self.attrs() if self.peek(2) == "=" else {}
        name = self.node_name(outputs)
        self.expect("{")
        arms: list[Graph] = []
        while not self.accept("}"):
            arms.append(self.arm())
        source = f"{self.source}:{line}"
        return CaseOf(name, "case", (index, *fallbacks), outputs, attrs, source=source, arms=tuple(arms))

    def arm(self) -> Graph:
        self.expect("arm")
        name = self.name("@")
        self.expect("{")
        nodes = self.nodes("yield")
        outputs = self.sequence(self.use, "}")
        self.expect("}")
        return Graph(name, (), nodes, tuple(outputs))
