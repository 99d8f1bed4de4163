"""Every kernel under every fact it may be run under: views, parts and operands in place, at every alignment.

`python -m tests.fuzz_kernels --kind facts` goes on with variations of the examples.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import RunError
from sublet.base.optional_imports import is_installed
from sublet.base.tensor import NUMPY
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Node, Value
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Command, spec_of
from sublet.ops.op import row_form, strided_operands
from sublet.ops.slice_maps import shape_of
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Array, Backend, Call, Operand, Strided
from tests.nn.examples import EXAMPLES, Case, case_of
from tests.nn.facts import ANY_BYTES, check_case, generated, weights
from tests.nn.variations import variation
from tests.support.kernel_layouts import ALIGNMENTS

VARIATIONS = 30
BACKENDS: list[Backend] = [ReferenceBackend(), *([TorchBackend()] if is_installed("torch") else [])]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", COMMANDS)
def test_examples_run_at_every_layout_their_facts_allow(name: str, backend: Backend) -> None:
    seen: Counter[str] = Counter()
    for i, example in enumerate(EXAMPLES[name]):
        other = ALIGNMENTS[1 + (i + len(name)) % (len(ALIGNMENTS) - 1)]
        check_case(
            case_of(COMMANDS[name], example), backend, (1, other) if backend.name == "torch" else (1,), seen, most=1
        )


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_variations_run_at_every_layout_their_facts_allow(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 20):
        generated(seed, BACKENDS[-1], seen)
    assert seen["shared"] > 50, seen


def facts_of(record: Command, case: Case) -> set[tuple[str, int, int]]:
    """(kind, output, input) of the shares of a use."""
    (node,) = case.graph.nodes
    kinds = {"views": record.views, "parts": record.parts, "inplace": record.inplace}
    return {(kind, share.output, share.input) for kind, shares in kinds.items() for share in shares(node)}


def test_every_fact_of_a_variation_is_in_an_example() -> None:
    """So that the tests of examples above have run every kernel under it."""
    for name, record in COMMANDS.items():
        known = {fact for example in EXAMPLES[record.name] for fact in facts_of(record, case_of(record, example))}
        for seed in range(VARIATIONS):
            rng = random.Random(seed)
            case = variation(record, rng.choice(EXAMPLES[record.name]), rng)
            assert case is None or facts_of(record, case) <= known, (
                f"nn.{name} needs an example like {case.graph.nodes}"
            )


@dataclass(frozen=True)
class Filling:
    """A backend whose kernel of nn.pad fills everything before it copies."""

    claims: bool
    name: str = "filling"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> FillingKernel | None:
        return FillingKernel(node, self.claims) if node.op == "nn.pad" else None


@dataclass(frozen=True)
class FillingKernel:
    node: Node
    keeps: bool
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        (x,), (y,) = inputs, outputs
        before = self.node.attrs["pads"][0]  # type: ignore[index]

        def run() -> None:
            y[...] = 0  # type: ignore[index]
            y[before : before + len(x)] = x  # type: ignore[index, arg-type, operator]

        return run


def padded(claims: bool) -> sublet.Executable:
    g = sublet.Graph("padded")
    x = g.input("x", (2, 64))
    g.output("y", nn.pad(nn.tanh(x), pads=(1, 0, 1, 0)))
    executable = sublet.compile(g, backend=[Filling(claims), "reference"])
    assert "part" in [placement.how for placement in executable.plan.placements]
    return executable


def test_a_kernel_that_does_not_know_of_parts_is_not_bound_where_there_may_be_one() -> None:
    executable = padded(claims=False)
    assert executable.nodes_of_backends == {"reference": 2}
    x = np.ones((2, 64), np.float32)
    assert np.allclose(executable(x=x)["y"][1:3], np.tanh(1))


def test_poison_finds_a_kernel_that_says_it_knows_and_does_not() -> None:
    with pytest.raises(RunError, match=r"pad.*changed a value already in place, at byte \d+ of the arena"):
        sublet.run_poisoned(padded(claims=True), {"x": np.ones((2, 64), np.float32)})


def with_strides(array: Array) -> Array:
    """Return the elements of an array in rows that lie apart, between NaN or other bytes."""
    wide = np.full((len(array), array[0].nbytes + 24), 0xFF, np.uint8)
    inner = np.empty((1, *array.shape[1:]), array.dtype).strides[1:]
    place = np.ndarray(array.shape, array.dtype, wide.reshape(-1)[8:], strides=(wide.shape[1], *inner))
    place[...] = array
    return place


def rows_of_examples(name: str) -> Iterator[tuple[Case, frozenset[int], frozenset[int]]]:
    """Yield uses of a command with operands that may lie in rows, and the positions of these."""
    rng = random.Random(len(name))
    cases = [case_of(COMMANDS[name], example) for example in EXAMPLES[name]]
    drawn = (variation(COMMANDS[name], rng.choice(EXAMPLES[name]), rng) for _ in range(VARIATIONS))
    for case in (*cases, *(each for each in drawn if each is not None)):
        (node,) = case.graph.nodes
        inputs, outputs = strided_operands(node, row_form(node))
        if len(shape_of(node.outputs[0])) > 1 and (inputs or outputs):
            yield case, inputs, outputs


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs PyTorch")
@pytest.mark.parametrize("name", COMMANDS)
def test_kernels_that_say_so_take_strides(name: str) -> None:
    for case, inputs, outputs in rows_of_examples(name):
        (node,), contents = case.graph.nodes, {**case.arrays, **{v.name: x for v, x in weights(case.graph).items()}}
        kernel, reference = BACKENDS[-1].kernel(node, {}), BACKENDS[0].kernel(node, {})
        assert reference is not None
        if not isinstance(kernel, Strided) or name in ANY_BYTES:
            continue
        for given, written in product({inputs, frozenset()}, {outputs, frozenset()}):
            if not kernel.takes_strides(given, written) or not given | written:
                continue
            read = [None if value is None else contents[value.name] for value in node.inputs]
            places = [np.full(spec_of(value).shape, 7, NUMPY[spec_of(value).dtype]) for value in node.defs]
            right = [place.copy() for place in places]
            reference.bind(read, right, None)()
            apart = [with_strides(x) if i in given and x is not None else x for i, x in enumerate(read)]
            found = [with_strides(y) if i in written else y for i, y in enumerate(places)]
            kernel.bind(apart, found, np.zeros(kernel.scratch, np.uint8) if kernel.scratch else None)()
            for place, expected in zip(found, right, strict=True):
                np.testing.assert_allclose(
                    place.astype(float), expected.astype(float), 2e-2, 1e-1 if place.itemsize < 4 else 1e-4, str(node)
                )
