"""Uses of every command, from `examples.txt`, as graphs and arrays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir.graph import Attr, Graph, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Command

Array = NDArray[Any]
FORM = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,]*)\](?P<range> (?P<low>[-\d.e]+):(?P<high>[-\d.e]+))?")


@dataclass(frozen=True)
class Example:
    """A use of a command: what its inputs are like, see `examples.txt`, and its attributes."""

    inputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)


def _read(text: str) -> dict[str, tuple[Example, ...]]:
    """The examples by command: names of commands that share them, then lines that are indented."""
    found: dict[str, tuple[Example, ...]] = {}
    names: list[str] = []
    named = False
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith(" "):
            for name in names:
                found[name] = (*found.get(name, ()), _example(line.strip()))
        else:
            names = [*names, *line.split()] if named else line.split()
        named = not line.startswith(" ")
    return found


def _example(line: str) -> Example:
    given, _, attrs = line.partition(" | ")
    call = ast.parse(f"use({attrs})", mode="eval").body
    assert isinstance(call, ast.Call)
    inputs = () if given == "()" else tuple(given.split("; "))
    return Example(inputs, {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg})


EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    **dict.fromkeys(COMMANDS, ()),
    **_read(Path(__file__).with_suffix(".txt").read_text()),
}
"""The examples of each command. A command without examples has none here, so that a test of its own names it."""


@dataclass(frozen=True)
class Case:
    """A graph of one node, and an array for each of its inputs."""

    graph: Graph
    arrays: dict[str, Array]


@contextmanager
def told(example: Example) -> Iterator[None]:
    """What fails is told with the example that it fails for."""
    try:
        yield
    except Exception as error:
        error.add_note(str(example))
        raise


def case_of(record: Command, example: Example, seed: int = 0) -> Case:
    """The example as a graph of one node whose inputs are filled at random."""
    random = np.random.default_rng(seed)
    inputs: list[Value | None] = []
    arrays: dict[str, Array] = {}
    for i, text in enumerate(example.inputs):
        if text == "_":
            inputs.append(None)
            continue
        value, array = _input(f"x{i}", text, random)
        inputs.append(value)
        arrays[value.name] = array
    given = tuple(value for value in inputs if value is not None)
    emit = Emitter.from_graph(Graph("example", given, (), ()))
    outputs = emit.all_outputs(f"nn.{record.name}", *inputs, **example.attrs)
    return Case(Graph("example", given, tuple(emit.nodes), outputs, tuple(emit.literals.added)), arrays)


def spec_of_text(text: str) -> TensorSpec:
    """The spec of "f32[2,3]", whatever range follows."""
    match = FORM.fullmatch(text)
    assert match, f"{text!r} is no example of an input"
    return TensorSpec(DType.parse(match["dtype"]), tuple(int(n) for n in match["shape"].split(",") if n))


def _input(name: str, text: str, random: np.random.Generator) -> tuple[Value, Array]:
    spec, match = spec_of_text(text), FORM.fullmatch(text)
    assert match
    dtype, shape = spec.dtype, spec.shape
    if dtype is DType.BOOL:
        array = random.integers(0, 2, shape).astype(bool)
    elif match["low"] is not None and NUMPY[dtype].kind in "iu":
        array = random.integers(int(match["low"]), int(match["high"]), shape)
    else:
        low, high = (float(match["low"]), float(match["high"])) if match["low"] is not None else (-2.0, 2.0)
        array = random.uniform(low, high, shape)
    return Value(name, spec), np.asarray(array, NUMPY[dtype]).reshape(shape)
