"""What is wrong with a loop or branch is said before it runs; what goes wrong in a round leaves no trace."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from sublet.api.compiling import compile
from sublet.base.errors import GraphError, KernelError, ModelError, TextError
from sublet.ir.text import parse
from sublet.runtime.executable import Executable
from tests.integrations.onnx.models import parsed
from tests.runtime.networks import with_functions

TEXT = """graph @net(%x: f32[4], %n: i64[]) {{
  %f: {parameter} = while(%i: i64[]; %p: {parameter} = %x; ) @loop body @body {{
    {condition}
    continue if %c
    {body}
    next %u;
  }}
  return %f
}}"""
LESS = "%c: bool[] = onnx.Less(%i, %n)"
NEGATE = "%u: f32[4] = onnx.Neg(%p)"


@pytest.mark.parametrize(
    ("parameter", "condition", "body", "error", "words"),
    [
        ("f32[5]", LESS, "%u: f32[5] = onnx.Neg(%p)", GraphError, r"initial value %x is f32\[4\], %p is f32\[5\]"),
        ("f32[4]", LESS, "%u: f32[2] = onnx.Neg(%p)", GraphError, r"update %u is f32\[2\], %p is f32\[4\]"),
        ("f32[4]", LESS, "%u: i32[4] = onnx.Neg(%p)", GraphError, r"update %u is i32\[4\], %p is f32\[4\]"),
        ("f32[4]", LESS, "%u: f32[4] = onnx.Neg(%q)", TextError, "%q is not defined"),
        ("f32[4]", "%c: f32[] = onnx.ReduceMax(%p)", NEGATE, GraphError, r"%c is f32\[\], expected one bool"),
        ("f32[4]", "%c: bool[4] = onnx.Less(%p, %x)", NEGATE, GraphError, r"%c is bool\[4\], expected one bool"),
    ],
)
def test_illegal_loops(parameter: str, condition: str, body: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compile(parse(TEXT.format(parameter=parameter, condition=condition, body=body)), backend="reference")


LOOP = """g (int64 n, float[4] x) => (float[4] y) {{
  yes = Constant <value = bool {{1}}> ()
  y = Loop (n, yes, x) <
    body = step (int64 i, bool on, float[4] a) => ({flag} go, float[4] b) {{ go = {go} b = {b} }}
  >
}}"""
IF = """g ({flag} c, float[4] x) => (float[4] y) {{
  y = If (c) <
    then_branch = yes () => (float[4] r) {{ r = Neg(x) }},
    else_branch = no () => (float[4] s) {{ s = Abs(x) }}
  >
}}"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LOOP.format(flag="bool", go="Identity(on)", b="Add(a, nobody)"), "reads 'nobody', which nothing defines"),
        (LOOP.format(flag="float", go="ReduceMax <keepdims = 0> (a)", b="Neg(a)"), r"must be one element of bool\[\]"),
        (LOOP.format(flag="bool[4]", go="Less(a, x)", b="Neg(a)"), r"must be one element of bool\[\], not bool\[4\]"),
        (IF.format(flag="float"), r"must be one element of bool\[\], not f32\[\]"),
        (IF.format(flag="bool[2]"), r"must be one element of bool\[\], not bool\[2\]"),
    ],
)
@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_illegal_models(text: str, words: str, backend: str) -> None:
    with pytest.raises(ModelError, match=words):
        compile(parsed(text), backend=backend)


FIBONACCI = parse(
    """graph @net(%a0: f32[4], %b0: f32[4], %n: i64[]) {
      %a: f32[4], %b: f32[4] = while(%i: i64[]; %p: f32[4] = %a0, %q: f32[4] = %b0; ) @loop body @body {
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        %t: f32[4] = onnx.A(%p)
        %u: f32[4] = onnx.Add(%t, %q)
        next %q, %u;
      }
      return %a, %b
    }"""
)
"""Its carried values take turns among places; %t is what the tests spoil."""


def fibonacci(executable: Executable, n: int) -> list[list[float]]:
    one = np.ones(4, np.float32)
    return [value.tolist() for value in executable(a0=one, b0=one, n=np.array(n)).values()]


def of_numbers(n: int) -> list[list[float]]:
    a, b = 1.0, 1.0
    for _ in range(n):
        a, b = b, a + b
    return [[a] * 4, [b] * 4]


def spoiled(round_number: int, how: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The identity, but in one round something else."""
    rounds = iter(range(1 << 30))
    return lambda x: how(x) if next(rounds) == round_number else x


def fail(x: Any) -> Any:
    raise ZeroDivisionError("no such luck")


def interrupt(x: Any) -> Any:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("round_number", range(6))
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        (fail, KernelError, r"node t, onnx\.A.*no such luck"),
        (interrupt, KeyboardInterrupt, None),
        (lambda x: np.ones(5, np.float32), KernelError, r"node t, onnx\.A.*shape"),
    ],
)
def test_a_round_that_fails(
    how: Callable[[Any], Any], error: type[BaseException], words: str | None, round_number: int
) -> None:
    """Whichever copy of the body it was, the next run starts anew."""
    executable = compile(FIBONACCI, backend=with_functions(A=spoiled(round_number, how)))
    assert executable.plan.rolled
    assert executable.plan.moves == ()
    with pytest.raises(error, match=words):
        fibonacci(executable, 9)
    for n in (9, 4, 0, 5):
        assert fibonacci(executable, n) == of_numbers(n)


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Like a user who presses Ctrl-C after a while."""

    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_an_endless_loop_is_interrupted(backend: str) -> None:
    pytest.importorskip("onnxruntime")
    model = parsed(
        """g (bool on0, float[4] x, float[4] z) => (float[4] y, float[4] w) {
          y, w = Loop (, on0, x, z) <
            body = step (int64 i, bool on, float[4] a, float[4] b) => (bool go, float[4] a1, float[4] b1) {
              go = Identity(on)
              b1 = Neg(a)
              a1 = Identity(b)
            }
          >
        }"""
    )
    executable = compile(model, backend=backend)
    x, z = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), alarm(0.05):
            executable(on0=np.array(True), x=x, z=z)
        found = executable(on0=np.array(False), x=x, z=z)
        assert [value.tolist() for value in found.values()] == [x.tolist(), z.tolist()]
