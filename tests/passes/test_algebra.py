"""Needless transfers, conversions and arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import sublet
from sublet import parse
from sublet.base.tensor import NUMPY
from sublet.passes.algebraic_simplification import LOSSLESS_CASTS
from sublet.passes.algebraic_simplification import without_identities as run
from sublet.passes.pass_pipeline import simplify
from tests.passes.text import becomes, stays


def left(lines: str, head: str = "%x: f32[2,3]") -> list[str]:
    """The ops that remain of some lines, the last of which computes %y."""
    constants = "weights %zero: f32[] = [0.0], %one: f32[] = [1.0]"
    end = "%r: f32[] = nn.sum(%y) {axes = [], keepdims = 0} return %r"
    text = f"graph @g({head}) {{ {constants} {lines} {end} }}"
    return [node.op.removeprefix("nn.") for node in simplify(parse(text)).nodes][:-1]


@pytest.mark.parametrize(
    "lines",
    [
        "%y: f32[2,3] = nn.copy(%x)",
        "%y: f32[2,3] = nn.add(%zero, %x)",
        "%y: f32[2,3] = nn.sub(%x, %zero)",
        "%y: f32[2,3] = nn.mul(%x, %one)",
        "%y: f32[2,3] = nn.div(%x, %one)",
        "%y: f32[2,3] = nn.pow(%x, %one)",
        "%a: f32[2,3] = nn.neg(%x) %y: f32[2,3] = nn.neg(%a)",
        '%a: f64[2,3] = nn.cast(%x) {dtype = "f64"} %y: f32[2,3] = nn.cast(%a) {dtype = "f32"}',
        "%a: f32[3,2] = nn.transpose(%x) {axes = [1, 0]} %y: f32[2,3] = nn.transpose(%a) {axes = [1, 0]}",
        "%a: f32[6] = nn.reshape(%x) {shape = [6]} %y: f32[2,3] = nn.reshape(%a) {shape = [2, 3]}",
        "%a: f32[2,3] = nn.abs(%x) %b: f32[2,3] = nn.sub(%a, %a) %y: f32[2,3] = nn.copy(%x)",
    ],
)
def test_what_changes_nothing_is_gone(lines: str) -> None:
    assert left(lines) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('%a: f16[2,3] = nn.cast(%x) {dtype = "f16"} %y: f32[2,3] = nn.cast(%a) {dtype = "f32"}', ["cast", "cast"]),
        ("%a: f32[6] = nn.reshape(%x) {shape = [6]} %y: f32[3,2] = nn.reshape(%a) {shape = [3, 2]}", ["reshape"]),
        ("%y: f32[2,3] = nn.sub(%zero, %x)", ["sub"]),
        ("%y: f32[2,3] = nn.div(%one, %x)", ["div"]),
        ("%a: f32[1,2,3] = nn.reshape(%x) {shape = [1, 2, 3]} %y: f32[4,2,3] = nn.broadcast_to(%a) {shape = [4, 2, 3]}",
         ["reshape", "broadcast_to"]),
    ],
)  # fmt: skip
def test_what_changes_something_stays(lines: str, expected: list[str]) -> None:
    assert left(lines) == expected


def test_transposes_become_one() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2,3,4]) {
          %a: f32[3,4,2] = nn.transpose(%x) {axes = [1, 2, 0]}
          %b: f32[4,2,3] = nn.transpose(%a) {axes = [1, 2, 0]}
          %c: f32[2,3,4] = nn.transpose(%b) {axes = [1, 2, 0]}
          %d: f32[2,3,4] = nn.neg(%c)
          return %b, %d
        }
        """,
        """
        graph @g(%x: f32[2,3,4]) {
          %a: f32[3,4,2] = nn.transpose(%x) {axes = [1, 2, 0]}
          %b: f32[4,2,3] = nn.transpose(%x) {axes = [2, 0, 1]}
          %d: f32[2,3,4] = nn.neg(%x)
          return %b, %d
        }
        """,
    )


def test_an_output_that_is_a_copy_of_an_input_stays() -> None:
    stays(run, "graph @g(%x: f32[2]) { %y: f32[2] = nn.copy(%x) return %y }")


def test_after_transfers_one_node_is_left_in_128_bytes() -> None:
    graph = parse("""
        graph @g(%x: f32[1], %y: f32[1]) {
          %a: f32[1] = nn.copy(%x)
          %b: f32[1] = nn.copy(%a)
          %c: f32[1] = nn.add(%b, %y)
          %d: f32[1] = nn.copy(%c)
          return %d
        }
        """)
    changed = simplify(graph)
    assert [node.op for node in changed.nodes] == ["nn.add"]
    assert sublet.plan_memory(changed).arena_bytes <= 128
    found = sublet.compile(changed, backend="reference")(x=np.float32([1.2]), y=np.float32([8]))
    assert found["d"] == np.float32(1.2) + np.float32(8)


@pytest.mark.parametrize("source", LOSSLESS_CASTS)
def test_exact_types_hold_every_number(source: sublet.DType) -> None:
    kind = NUMPY[source]
    if source.bits <= 16:
        numbers = np.arange(1 << source.bits, dtype=f"u{source.bits // 8}").view(kind)
        with np.errstate(invalid="ignore"):
            numbers = numbers[np.isfinite(numbers.astype(np.float64))]
    else:
        limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        numbers = np.array([limits.max, limits.min, 1, 0], kind)
    for target in LOSSLESS_CASTS[source]:
        assert np.array_equal(numbers.astype(NUMPY[target]).astype(kind), numbers), target
