"""The document of the text form is right, and no text, however broken, raises anything but TextError."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from sublet import Graph, compile, nn, read_model
from sublet.base.errors import TextError
from sublet.base.tensor import DType, Unplannable
from sublet.checker import check
from sublet.ir.text import parse, parse_model, to_text
from sublet.ir.text.parser import MAX_DEPTH
from sublet.plan.file import load, save
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "text_form.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sublet\n(.*?)```", DOCUMENT, re.DOTALL)
CASES = ("straight_line", "loop_and_branch", "literals")
VALID = [
    *EXAMPLES,
    *((ROOT / f"tests/cases/parse/{name}.txt").read_text(encoding="utf-8").partition("---")[0] for name in CASES),
]
TOKEN = re.compile(r'[%@]?"[^"\n]*"|[%@]?[\w./+$-]+|\S')
STRAYS = [
    *'{}()[],;:=%@"\\_#-. \n\x00é٣',
    *("while", "case", "arm", "body", "next", "yield", "return", "weights", "graph", "else", "axis", "reversed"),
    *("continue if", "outside(", "bytes(", '"zz"', '"\\q"', '"\\ud800"', '%"\\q"', "nan", "-inf", "1e999", "true"),
    *("9" * 30, "9" * 5000, "-1", "2.5", "= [", "{a = ", "f32[", "%x", "@x", "onnx.Relu(%x) {", "case %x {"),
]


def accepted(text: str) -> bool:
    """Whether the text parses. A graph survives the round trip; an error is short and says the line."""
    try:
        graph = parse(text)
    except TextError as error:
        message = str(error)
    else:
        assert parse(to_text(graph)) == graph
        return True
    assert re.match(r"<text>:\d+: ", message)
    assert len(message) < 500
    return False


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: re.search(r"@(\w+)", text)[1])
def test_example_of_the_document_is_planned(text: str) -> None:
    graph = parse(text)
    assert check(graph, serial_schedule(graph), plan_memory(graph)) == ()


def test_document_names_every_type_and_limit() -> None:
    assert len(EXAMPLES) == 5
    types = re.search(r"All data types:\n\n`([^`]*)`", DOCUMENT)
    assert types is not None
    assert sorted(types[1].split()) == sorted(str(dtype) for dtype in DType)
    assert f"at most {MAX_DEPTH} deep" in DOCUMENT


@pytest.mark.parametrize("text", VALID, ids=range(len(VALID)))
def test_every_prefix(text: str) -> None:
    assert accepted(text)
    ends = [end for end in range(len(text.rstrip())) if accepted(text[:end])]
    assert ends == []


@pytest.mark.parametrize("seed", range(20))
def test_broken_texts(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(100):
        text = rng.choice(VALID)
        for _ in range(rng.randint(1, 3)):
            text = mutated(rng, text)
        refused += not accepted(text)
    assert refused > 30


def mutated(rng: random.Random, text: str) -> str:
    """The text with one place deleted, replaced, doubled or put before another; a place is a character or a token."""
    places = [match.span() for match in TOKEN.finditer(text)] if rng.random() < 0.6 else []
    begin, end = rng.choice(places or [(at, at + 1) for at in range(len(text))])
    kind = rng.choice(("delete", "replace", "insert", "double", "copy"))
    if kind == "delete":
        return text[:begin] + text[end:]
    if kind == "double":
        return text[:end] + " " + text[begin:]
    if kind == "copy":
        source, stop = rng.choice(places or [(begin, end)])
        return text[:begin] + text[source:stop] + text[end:]
    return text[:begin] + rng.choice(STRAYS) + text[begin if kind == "insert" else end :]


def nested(kind: str, depth: int) -> str:
    opening, closing = {
        "case": ("%y{i}: f32[4] = case %flag {{ arm @a{i} {{", "yield {inner} }} }}"),
        "while": (
            "%y{i}: f32[4] = while(%i{i}: i64[]; %p{i}: f32[4] = %x; ) body @a{i} {{ continue if %flag",
            "next {inner}; }}",
        ),
    }[kind]
    lines = ["graph @deep(%x: f32[4], %flag: bool[]) {", *(opening.format(i=i) for i in range(depth))]
    lines.append("%z: f32[4] = onnx.Relu(%x)")
    inner = "%z"
    for i in reversed(range(depth)):
        lines.append(closing.format(inner=inner))
        inner = f"%y{i}"
    return "\n".join([*lines, f"return {inner}", "}"])


@pytest.mark.parametrize("kind", ["case", "while"])
def test_the_deepest_nesting_is_read_and_written(kind: str) -> None:
    assert accepted(nested(kind, MAX_DEPTH))


# Planning loops inside loops takes twice the time a level, so theirs are fewer.
@pytest.mark.parametrize(("kind", "depth"), [("case", MAX_DEPTH), ("while", 6)])
def test_deep_nesting_is_planned_saved_and_checked(kind: str, depth: int, tmp_path: Path) -> None:
    graph = parse(nested(kind, depth))
    plan = plan_memory(graph)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert check(graph, serial_schedule(graph), plan) == ()


@pytest.mark.parametrize("kind", ["case", "while"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000])
def test_deeper_nesting_is_refused(kind: str, depth: int) -> None:
    with pytest.raises(TextError, match=f":{MAX_DEPTH + 2}: sub-graphs are nested more than {MAX_DEPTH} deep"):
        parse(nested(kind, depth))


@pytest.mark.parametrize(
    "broken",
    [
        "%" + "n" * 10_000,
        "f" * 10_000,
        f"u8[{'9' * 10_000}]",
        f"u8[{','.join(['1'] * 9_999)},-1]",
        f'outside("{"n" * 10_000}", 1)',
        f'outside("\\q{"n" * 10_000}", "")',
    ],
    ids=["name", "type", "extent", "shape", "string", "escape"],
)
def test_long_tokens_make_short_messages(broken: str) -> None:
    assert not accepted(f"graph @net(%x: {broken}) {{ return %x }}")
    assert not accepted(f"graph @net(%y: {broken}[2]) {{ return %x }}")


def test_numbers_that_are_not_numbers_survive() -> None:
    weights = "weights %w: f32[3] = [nan, -inf, inf]"
    assert accepted(f"graph @net(%x: f32[1]) {{ {weights} %y: f32[1] = onnx.A(%x) {{a = nan, b = [nan]}} return %y }}")


@pytest.mark.parametrize(
    ("text", "dtype", "dims"),
    [
        ("i64[2,?]", DType.I64, (2, None)),
        ("f32[]", DType.F32, ()),
        ("f32[...]", DType.F32, None),
        ("str[?]", None, (None,)),
        ("onnx99[3]", None, (3,)),
        ("seq(i64[...])", None, None),
        ("?", None, None),
        ("i64[2,]", None, None),
        ("i64[12345678901234567890]", None, None),
    ],
)
def test_a_type_outside_the_plan_is_read_as_what_it_says(text: str, dtype: DType | None, dims: object) -> None:
    spec = Unplannable.parse(text, "why")
    assert (spec.type, spec.reason, spec.dtype, spec.dims) == (text, "why", dtype, dims)
    assert spec.dtype_and_dims == (None if dtype is None else (dtype, dims))


def test_extents_that_nobody_reckons_with_are_not_known() -> None:
    assert Unplannable("why", "f32", (None, 10**18)).dtype_and_dims is None
    assert Unplannable("why", "f32", (None, 10**18 - 1)).dtype_and_dims is not None


def test_output_names_are_kept(tmp_path: Path) -> None:
    """Written graphs and models have output names; graphs and old texts have none."""
    g = Graph("net")
    x = g.input("x", (2, 3))
    g.output("odd name", nn.relu(x))
    g.output("x2", x * 2)
    text = to_text(g)
    path = tmp_path / "net.sublet"
    path.write_text(text, encoding="utf-8")
    model = read_model(path)
    assert model.outputs == ("odd name", "x2")
    assert to_text(model) == text
    assert 'return %relu as "odd name", %mul as "x2"' in text
    assert parse(text) == model.graph == parse(to_text(model.graph))
    assert parse_model(to_text(model.graph)).outputs == ()
    assert [*compile(path)(x=np.ones((2, 3), np.float32))] == ["odd name", "x2"]
    assert [*compile(parse(text))(x=np.ones((2, 3), np.float32))] == ["relu", "mul"]
    for wrong in ('return %relu as "mul", %mul', 'return %relu as "a", %mul as "a"', 'return %relu, %mul as "relu"'):
        with pytest.raises(TextError, match="is the name of another output"):
            parse(text.replace('return %relu as "odd name", %mul as "x2"', wrong))
    with pytest.raises(TextError, match="the name of the output as a string"):
        parse(text.replace('"odd name"', "odd"))
