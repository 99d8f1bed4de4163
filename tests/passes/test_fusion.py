"""Fusion: groups of commands become one command, which computes the same."""

from __future__ import annotations

import pytest

from sublet import parse
from sublet.passes.fusion import with_fused_patterns as run
from sublet.passes.pass_pipeline import simplify
from tests.passes.programs import same
from tests.passes.text import becomes, stays


def ops(text: str) -> list[str]:
    """The commands of the fused and simplified program, which computes what the text does."""
    graph = parse(text)
    changed = simplify(graph)
    same(graph, changed, tolerance=1e-9)
    return [node.op.removeprefix("nn.") for node in changed.walk()]


def test_softmax_and_cross_entropy() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2,3], %labels: i64[2]) {
          %p: f32[2,3] = nn.softmax(%x) {axis = 1}
          %q: f32[2,3] = nn.neg(%p)
          %loss: f32[2] = nn.categorical_cross_entropy(%p, %labels)
          return %loss, %q
        }
        """,
        """
        graph @g(%x: f32[2,3], %labels: i64[2]) {
          %loss: f32[2], %p: f32[2,3] = nn.softmax_cross_entropy(%x, %labels)
          %q: f32[2,3] = nn.neg(%p)
          return %loss, %q
        }
        """,
    )


def test_softmax_along_another_axis_stays() -> None:
    stays(
        run,
        """
        graph @g(%x: f32[2,3], %labels: i64[2]) {
          %p: f32[2,3] = nn.softmax(%x) {axis = 0}
          %loss: f32[2] = nn.categorical_cross_entropy(%p, %labels)
          return %loss
        }
        """,
    )


@pytest.mark.parametrize("operands", ["%m, %n", "%n, %m"])
def test_of_two_products_the_second_is_added_to_the_first(operands: str) -> None:
    """However far apart they stand: one matrix is there, not two."""
    text = """
        graph @g(%a: f32[2,3], %b: f32[3,2]) {
          %m: f32[2,2] = nn.matmul(%a, %b) {transpose_a = 0, transpose_b = 0}
          %t: f32[2,3] = nn.tanh(%a)
          %n: f32[2,2] = nn.matmul(%t, %b) {transpose_a = 0, transpose_b = 0}
          %u: f32[2,3] = nn.exp(%t)
          %sum: f32[2,2] = nn.add(OPERANDS)
          return %sum, %u
        }
        """
    becomes(
        run,
        text.replace("OPERANDS", operands),
        """
        graph @g(%a: f32[2,3], %b: f32[3,2]) {
          %m: f32[2,2] = nn.matmul(%a, %b) {transpose_a = 0, transpose_b = 0}
          %t: f32[2,3] = nn.tanh(%a)
          %sum: f32[2,2] = nn.gemm(%t, %b, %m) {alpha = 1.0, beta = 1.0, transpose_a = 0, transpose_b = 0}
          %u: f32[2,3] = nn.exp(%t)
          return %sum, %u
        }
        """,
    )


@pytest.mark.parametrize(("reader", "fused"), [("%x", True), ("%p", False)])
def test_sigmoid_and_binary_cross_entropy_unless_another_reads_between(reader: str, fused: bool) -> None:
    found = ops(f"""
        graph @g(%x: f64[2,3], %labels: f64[2,3]) {{
          %p: f64[2,3] = nn.sigmoid(%x)
          %loss: f64[2,3] = nn.binary_cross_entropy(%p, %labels)
          %q: f64[2,3] = nn.exp({reader})
          return %loss, %q
        }}
        """)
    assert ("sigmoid_binary_cross_entropy" in found) == fused


@pytest.mark.parametrize(
    ("a", "b", "y", "flags", "bias", "expected"),
    [
        ("2,4,3", "5,3", "2,4,5", "transpose_a = 0, transpose_b = 1", "5", ["linear"]),
        ("4,3", "3,5", "4,5", "transpose_a = 0, transpose_b = 0", "5", ["gemm"]),
        ("3,4", "3,5", "4,5", "transpose_a = 1, transpose_b = 0", "4,5", ["gemm"]),
        ("2,4,3", "3,5", "2,4,5", "transpose_a = 0, transpose_b = 0", "5", ["matmul", "add"]),
    ],
)
def test_products_with_a_bias(a: str, b: str, y: str, flags: str, bias: str, expected: list[str]) -> None:
    found = ops(f"""
        graph @g(%a: f64[{a}], %b: f64[{b}], %c: f64[{bias}]) {{
          %p: f64[{y}] = nn.matmul(%a, %b) {{{flags}}}
          %q: f64[{y}] = nn.add(%c, %p)
          return %q
        }}
        """)
    assert found == expected


def test_a_bias_that_is_computed_in_between_is_not_waited_for() -> None:
    """%a and %b would live longer."""
    stays(
        run,
        """
        graph @g(%a: f64[4,3], %b: f64[5,3], %c: f64[5]) {
          %p: f64[4,5] = nn.matmul(%a, %b) {transpose_a = 0, transpose_b = 1}
          %d: f64[5] = nn.exp(%c)
          %q: f64[4,5] = nn.add(%p, %d)
          return %q
        }
        """,
    )


def test_a_convolution_with_a_bias() -> None:
    found = ops("""
        graph @g(%x: f64[1,2,4,4], %w: f64[3,2,3,3], %b: f64[3]) {
          %c: f64[3,1,1] = nn.reshape(%b) {shape = [3, 1, 1]}
          %p: f64[1,3,2,2] = nn.conv(%x, %w)
            {strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], groups = 1, layout = "nchw"}
          %q: f64[1,3,2,2] = nn.add(%p, %c)
          return %q
        }
        """)
    assert found == ["conv"]


ATTENTION = """
graph @g(%q: f64[1,2,3,4], %k: f64[1,2,5,4], %v: f64[1,2,5,4], %mask: f64[3,5]) {{
  weights %c: f64[] = [{scale}]
  %a: f64[1,2,3,5] = nn.matmul(%q, %k) {{transpose_a = 0, transpose_b = 1}}
  %b: f64[1,2,3,5] = nn.{times}(%a, %c)
  {mask}
  %p: f64[1,2,3,5] = nn.softmax({scores}) {{axis = -1}}
  %y: f64[1,2,3,4] = nn.matmul(%p, %v) {{transpose_a = 0, transpose_b = 0}}
  return %y{also}
}}
"""


@pytest.mark.parametrize(("scale", "times"), [("0.5", "mul"), ("3.0", "div")])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(scale: str, times: str, masked: bool) -> None:
    mask, scores = ("%m: f64[1,2,3,5] = nn.add(%b, %mask)", "%m") if masked else ("", "%b")
    assert ops(ATTENTION.format(scale=scale, times=times, mask=mask, scores=scores, also="")) == ["attention"]


def test_attention_whose_probabilities_are_asked_for_stays() -> None:
    text = ATTENTION.format(scale="0.5", times="mul", mask="", scores="%b", also=", %p")
    assert "attention" not in ops(text)
