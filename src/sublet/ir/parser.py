"""Reads the text form that `printer` writes; see there for the grammar by example."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sublet.errors import SubletError, TextError
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.printer import default_node_name
from sublet.tensor import DType, Spec, TensorSpec, Unplannable

T = TypeVar("T")
Literal = int | float | bool | str | bytes

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|\#[^\n]*)
  | (?P<name>[%@](?:[A-Za-z0-9_./+$-]+|"(?:[^"\\\n]|\\.)*"))
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<number>-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf\b|nan\b))
  | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
  | (?P<mark>[{}()\[\],;:=])
    """,
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str, source: str = "<text>") -> Graph:
    """The graph a text describes. Raises TextError with the line of the first mistake."""
    parser = _Parser(_tokens(text, source), source)
    graph = parser.graph()
    parser.expect_end()
    return graph


def _tokens(text: str, source: str) -> list[_Token]:
    tokens: list[_Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise TextError(f"{source}:{line}: unexpected character {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    tokens.append(_Token("end", "end of text", line))
    return tokens


class _Parser:
    """A cursor over tokens, and the values defined so far: names are unique in the whole program."""

    def __init__(self, tokens: list[_Token], source: str):
        self.tokens = tokens
        self.source = source
        self.at = 0
        self.values: dict[str, Value] = {}

    # -- tokens ---------------------------------------------------------------------------------

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def fail(self, message: str) -> TextError:
        return TextError(f"{self.source}:{self.next.line}: {message}")

    def take(self, kind: str, what: str) -> str:
        if self.next.kind != kind:
            raise self.fail(f"expected {what}, found {self.next.text!r}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def accept(self, text: str) -> bool:
        if self.next.text != text or self.next.kind in ("string", "name"):
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(f"expected {text!r}, found {self.next.text!r}")

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.fail(f"expected the end, found {self.next.text!r}")

    def sequence(self, item: Callable[[], T], *ends: str) -> list[T]:
        """Items separated by commas, up to one of `ends` (not consumed)."""
        items: list[T] = []
        while self.next.text not in ends:
            if items:
                self.expect(",")
            items.append(item())
        return items

    # -- names and types ------------------------------------------------------------------------

    def name(self, sigil: str) -> str:
        text = self.take("name", f"a name that starts with {sigil}")
        if text[0] != sigil:
            self.at -= 1
            raise self.fail(f"expected a name that starts with {sigil}, found {text!r}")
        return str(json.loads(text[1:])) if text[1] == '"' else text[1:]

    def key(self) -> str:
        if self.next.kind == "string":
            return str(json.loads(self.take("string", "a name")))
        return self.take("word", "a name")

    def integer(self) -> int:
        text = self.take("number", "an integer")
        try:
            return int(text)
        except ValueError:
            self.at -= 1
            raise self.fail(f"expected an integer, found {text!r}") from None

    def use(self) -> Value:
        name = self.name("%")
        if name not in self.values:
            self.at -= 1
            raise self.fail(f"%{name} is not defined before this line")
        return self.values[name]

    def use_or_omitted(self) -> Value | None:
        return None if self.accept("_") else self.use()

    def declare(self) -> Value:
        name = self.name("%")
        if name in self.values:
            self.at -= 1
            raise self.fail(f"%{name} is defined twice")
        self.expect(":")
        spec = self.spec()
        literal = self.attr() if isinstance(spec, TensorSpec) and self.literal_follows() else None
        value = Value(name, spec, literal)  # type: ignore[arg-type]
        self.values[name] = value
        return value

    def literal_follows(self) -> bool:
        if self.next.text == "=" and self.tokens[self.at + 1].text == "[":
            self.at += 1
            return True
        return False

    def declare_or_omitted(self) -> Value | None:
        return None if self.accept("_") else self.declare()

    def spec(self) -> Spec:
        word = self.take("word", "a type such as f32[2,3]")
        if word == "outside":
            self.expect("(")
            kind = str(json.loads(self.take("string", "the type as a string")))
            self.expect(",")
            reason = str(json.loads(self.take("string", "the reason as a string")))
            self.expect(")")
            return Unplannable(kind, reason)
        self.expect("[")
        shape = self.sequence(self.integer, "]")
        self.expect("]")
        try:
            return TensorSpec(DType.parse(word), tuple(shape))
        except SubletError as error:
            raise self.fail(str(error)) from None

    # -- attributes -----------------------------------------------------------------------------

    def attr(self) -> Attr:
        if self.accept("["):
            items = self.sequence(self.scalar, "]")
            self.expect("]")
            return tuple(items)  # type: ignore[return-value]
        return self.scalar()

    def scalar(self) -> Literal:
        kind, text, _ = self.next
        self.at += 1
        if kind == "string":
            return str(json.loads(text))
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if text in ("true", "false"):
            return text == "true"
        if text in ("inf", "nan"):
            return float(text)
        if text == "bytes":
            self.expect("(")
            raw = bytes.fromhex(json.loads(self.take("string", "hexadecimal digits")))
            self.expect(")")
            return raw
        self.at -= 1
        raise self.fail(f"expected a value, found {text!r}")

    def attrs(self) -> dict[str, Attr]:
        found: dict[str, Attr] = {}
        # A block of a case also opens with "{"; attributes are `key = value`.
        if self.next.text == "{" and self.tokens[self.at + 2].text == "=":
            self.expect("{")
            for key, value in self.sequence(self.attribute, "}"):
                found[key] = value
            self.expect("}")
        return found

    def attribute(self) -> tuple[str, Attr]:
        key = self.key()
        self.expect("=")
        return key, self.attr()

    # -- graphs and nodes -----------------------------------------------------------------------

    def graph(self) -> Graph:
        self.expect("graph")
        name = self.name("@")
        self.expect("(")
        inputs = self.sequence(self.declare, ")")
        self.expect(")")
        self.expect("{")
        weights = self.sequence_of_weights() if self.accept("weights") else []
        nodes = self.nodes("return")
        outputs = self.sequence(self.use, "}")
        self.expect("}")
        return Graph(name, tuple(inputs), nodes, tuple(outputs), tuple(weights))

    def sequence_of_weights(self) -> list[Value]:
        weights = [self.declare()]
        while self.accept(","):
            weights.append(self.declare())
        return weights

    def nodes(self, *ends: str) -> tuple[Node, ...]:
        """Nodes up to one of the words `ends`, which is consumed."""
        nodes: list[Node] = []
        while self.next.text not in ends:
            nodes.append(self.node())
        self.at += 1
        return tuple(nodes)

    def node(self) -> Node:
        line = self.next.line
        mark = self.at
        known = dict(self.values) if self.opens_subgraph() else None
        outputs = tuple(self.sequence(self.declare_or_omitted, "="))
        self.expect("=")
        if known is not None:
            # The results of a loop or branch are defined after its sub-graphs.
            results, self.values = self.values, known
            node = self.while_(outputs) if self.accept("while") else self.case_(outputs)
            self.values |= {v.name: results[v.name] for v in outputs if v is not None}
            return node
        if mark == self.at:
            raise self.fail("expected a node")
        op = self.key()
        self.expect("(")
        inputs = tuple(self.sequence(self.use_or_omitted, ")"))
        self.expect(")")
        attrs = self.attrs()
        name = self.name("@") if self.next.text.startswith("@") else default_node_name(outputs)
        return Node(name, op, inputs, outputs, attrs, source=f"{self.source}:{line}")

    def opens_subgraph(self) -> bool:
        """Whether the node that starts here is a while or a case: the word after its `=`."""
        depth = 0
        for i in range(self.at, len(self.tokens)):
            kind, text, _ = self.tokens[i]
            depth += (text in "([{") - (text in ")]}") if kind == "mark" else 0
            if text == "=" and kind == "mark" and depth == 0:
                return self.tokens[i + 1].text in ("while", "case")
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
        name = self.name("@") if self.next.text.startswith("@") else default_node_name(outputs)
        self.expect("body")
        body_name = self.name("@")
        self.expect("{")
        before = self.nodes("continue")
        self.expect("if")
        condition = self.use()
        after = self.nodes("next")
        updates = self.sequence(self.use, ";")
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
        attrs = self.attrs()
        name = self.name("@") if self.next.text.startswith("@") else default_node_name(outputs)
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
