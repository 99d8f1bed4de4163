"""Splitting: every way to cut a command gives what the command gives, and what cannot be cut is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import operand
from sublet.ops.op import SUSPEND
from sublet.ops.slice_maps import no_slices
from sublet.ops.verify import verify
from sublet.passes.splitting.split_nodes import split_nodes, split_regions
from sublet.passes.splitting.split_rules import (
    BATCH,
    BY_RESULT,
    EARLY,
    MOMENTUM,
    ONTO,
    OPTIMIZERS,
    RESULT,
    split_rule_for,
)
from sublet.passes.splitting.weight_updates import accumulable_terms
from sublet.planning.pipeline import plan_memory
from tests.fuzz_budget import check_pieces, runs_alike
from tests.nn.examples import EXAMPLES, case_of
from tests.nn.facts import expected, nearly, weights
from tests.training.steps import UNPLANNED, Step

WHOLE = OPTIMIZERS | {"batch_norm", "dropout"}
"""Commands with slice maps that are not split by batch: rows of weights, or other results for a part."""

BY_BATCH = {name for name, record in COMMANDS.items() if record.slices is not no_slices} - WHOLE
KNOWN = sorted({(BATCH, name) for name in BY_BATCH} | {(RESULT, name) for name in BY_RESULT})


@pytest.mark.parametrize(("kind", "name"), KNOWN)
def test_pieces_give_what_the_command_gives(kind: str, name: str) -> None:
    cut = 0
    for example in EXAMPLES[name]:
        case = case_of(COMMANDS[name], example)
        graph = case.graph
        (node,) = graph.nodes
        for count in (2, 3):
            if split_rule_for(node, kind, count) is None:
                continue
            made = split_nodes(graph, ((node.name, kind, count),)).graph
            verify(made)
            cut += len(made.nodes) > 1
            given = {value: case.arrays[value.name] for value in graph.inputs}
            found = expected(made, {**given, **weights(made)})
            for value, right in expected(graph, {**given, **weights(graph)}).items():
                nearly(found[value], right, value, f"{example} in {count} pieces by {kind}")
    assert cut, f"no example of {name} is cut by {kind}"


def step() -> Graph:
    """A looked-up table that is the last layer too, of which only its gradient is large."""
    g = sublet.Graph("tied")
    table = g.parameter("table", (101, 8), initial=0.1, dtype="f64")
    hidden = nn.gelu(nn.embedding(table, g.input("words", (3, 4), "i64")))
    logits = nn.linear(hidden, table).reshape(12, 101)
    loss = nn.softmax_cross_entropy(logits, g.input("labels", (12,), "i64"))[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1, momentum=0.9)).graph


def named(graph: Graph, op: str) -> str:
    """The last node of an op."""
    return next(node.name for node in reversed(graph.nodes) if node.op == op)


def test_what_cannot_be_done_in_pieces_is_refused() -> None:
    graph = step()
    product, total, mean = (named(graph, op) for op in ("nn.matmul", "nn.add", "nn.mean"))
    for splits, words in (
        ((("nobody", BATCH, 2),), "no such node"),
        (((product, BATCH, 2), (product, RESULT, 2)), "listed twice"),
        (((mean, BATCH, 2),), "cannot be split into 2 pieces by batch"),
        (((product, RESULT, 102),), "cannot be split into 102 pieces"),
        (((product, "columns", 2),), "cannot be split into 2 pieces by columns"),
        (((product, ONTO, 1),), "does not add a row gradient"),
        (((total, ONTO, 2),), "does not add a row gradient"),
        (((product, EARLY, 1),), "no update"),
        (((product, MOMENTUM, 1),), "no update with a momentum"),
    ):
        with pytest.raises(PlanError, match=words):
            split_nodes(graph, splits)


def test_a_whole_is_called_as_no_other_node_is() -> None:
    """Found by the fuzz: a node may be called as a value is that another one gives."""
    text = "graph @g(%x: f32[4]) {\n %y: f32[4] = nn.relu(%x) @first\n %z: f32[4] = nn.tanh(%y) @y\n return %y, %z\n}"
    graph = split_nodes(sublet.parse(text), (("first", BATCH, 2),)).graph
    verify(graph)
    assert len(graph.nodes) == 5


def test_an_early_update_has_its_gradient_added_up_as_its_terms_come() -> None:
    """All that is read by one update alone comes along, so that what the terms are made of is not kept to the end."""
    g = sublet.Graph("recurrent")
    weights = [g.parameter(name, (8, 8), initial=0.1) for name in "uv"]
    h = g.input("h", (2, 8))
    for _ in range(5):
        h = nn.tanh(h @ weights[0]) @ weights[1]
    given = sublet.train_step(h.mean(), g.parameters, sublet.SGD(0.1)).graph
    updates = [node for node in given.nodes if node.op == "nn.sgd"]
    sums = [node for node in given.nodes if node.op == "nn.gemm"]
    others = [node for node in given.nodes if node not in (*sums, *updates)]
    late = replace(given, nodes=(*others, *sums, *updates))
    made = split_nodes(late, tuple((node.name, EARLY, 1) for node in updates)).graph
    verify(made)
    assert {node.name for node in made.nodes} == {node.name for node in given.nodes}
    written = [node.op for node in made.nodes]
    rounds = [i for i, op in enumerate(written) if op == "nn.tanh_gradient"]
    assert len(sums) == 8
    assert all("nn.gemm" in written[begin:end] for begin, end in pairwise(rounds[1:]))


def recurrent(optimizer: sublet.SGD | sublet.Adam, dtype: str = "f32") -> Graph:
    """Two weights that five steps read; a bias, whose gradient is no sum of products."""
    g = sublet.Graph("recurrent")
    weights = [g.parameter(name, (8, 8), dtype, initial=layers.normal(0.3)) for name in "uv"]
    bias, h = g.parameter("bias", (8,), dtype, initial=0.1), g.input("h", (2, 8), dtype)
    for _ in range(5):
        h = nn.tanh(h @ weights[0] + bias) @ weights[1]
    return sublet.train_step(h.mean(), g.parameters, optimizer).graph


def test_a_momentum_takes_up_its_gradient() -> None:
    given = recurrent(sublet.SGD(0.1, momentum=0.9))
    assert {len(terms) for terms in accumulable_terms(given).values()} == {5}
    made = split_nodes(given, tuple((name, MOMENTUM, 1) for name in accumulable_terms(given))).graph
    rng = np.random.default_rng(0)
    initial = {value.name: rng.normal(size=spec_of(value).shape).astype("f4") for value, _ in given.updates}
    step = Step(given, initial, {"h": rng.normal(size=(2, 8)).astype("f4")})
    bound = Options(io="bound", weights="bound", alignment=4)
    runs_alike("the momentum takes up", step, step.compiled(UNPLANNED), made, bound)
    lies = {each.value: each.region.storage for each in plan_memory(made, bound).placements}
    sums = [node.outputs[0].name for node in made.nodes if node.op == "nn.gemm" and node.attrs["transpose_a"]]
    assert len(sums) == 10
    assert all(lies[name].endswith(".momentum") for name in sums), "a sum has bytes of its own"


@pytest.mark.parametrize(
    "optimizer",
    [
        sublet.SGD(0.1),
        sublet.Adam(0.1),
        sublet.SGD(0.1, momentum=0.9, nesterov=True),
        sublet.SGD(0.1, momentum=0.9, dampening=0.5),
        sublet.SGD(0.1, momentum=0.9, decay=0.1),
    ],
    ids=["no momentum", "Adam", "Nesterov", "dampening", "decay"],
)
def test_a_momentum_of_more_than_the_gradient_takes_up_none(optimizer: sublet.SGD | sublet.Adam) -> None:
    given = recurrent(optimizer)
    assert not accumulable_terms(given)
    with pytest.raises(PlanError, match="no update with a momentum"):
        split_nodes(given, ((given.nodes[-1].name, MOMENTUM, 1),))


def test_what_somebody_else_reads_is_no_term_of_a_momentum() -> None:
    given = recurrent(sublet.SGD(0.1, momentum=0.9))
    assert not accumulable_terms(recurrent(sublet.SGD(0.1, momentum=0.9), "bf16")), (
        "rounded to a short type term by term"
    )
    for name, terms in accumulable_terms(given).items():
        update = next(node for node in given.nodes if node.name == name)
        for value in (terms[1].defs[0], terms[-1].defs[0], operand(update, 3)):
            assert name not in accumulable_terms(replace(given, outputs=(*given.outputs, value)))


def test_no_part_of_a_statistic_or_of_a_mask_is_split_off() -> None:
    for name in WHOLE:
        for example in EXAMPLES[name]:
            (node,) = case_of(COMMANDS[name], example).graph.nodes
            assert split_rule_for(node, BATCH, 2) is None


@pytest.mark.parametrize("seed", range(6))
def test_steps_with_nodes_at_random_in_pieces(seed: int) -> None:
    """`python -m tests.fuzz_budget --pieces` goes on."""
    check_pieces(seed)


def test_impure_nodes_keep_their_order_beside_a_region() -> None:
    """A random operator delayed behind a region delays the random operators after it."""
    spec = TensorSpec(DType.F32, (4,))
    x, a, b, c, d, e = (Value(name, spec) for name in "xabcde")
    nodes = [
        Node("a", "nn.relu", (x,), (a,)),
        Node("first", "cut.random", (a,), (c,)),
        Node("second", "cut.random", (x,), (d,)),
        Node("b", "nn.relu", (a,), (b,)),
        Node("cut", SUSPEND, (), ()),
        Node("e", "nn.relu", (b,), (e,)),
    ]

    def alike(node: Node) -> str | None:
        return "rows" if node.op == "nn.relu" else None

    regions = split_regions(nodes, alike, lambda node: set(), lambda node: set(node.defs))
    names = [[node.name for node in region] for region in regions]
    assert names == [["a", "b"], ["first"], ["second"], ["cut"], ["e"]]
