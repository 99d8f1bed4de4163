"""Splitting: every way to cut a command gives what the command gives, and what cannot be cut is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import sublet
from sublet import nn
from sublet.base.errors import PlanError
from sublet.ir.graph import Graph
from sublet.ops.nn import COMMANDS
from sublet.ops.verify import verify
from sublet.passes.splitting.pieces import splitted
from sublet.passes.splitting.ways import BATCH, BY_BATCH, BY_RESULT, EARLY, ONTO, RESULT, way
from tests.fuzz_budget import check_pieces
from tests.nn.examples import EXAMPLES, case_of
from tests.nn.facts import expected, nearly, weights

KNOWN = sorted({(BATCH, name) for name in BY_BATCH} | {(RESULT, name) for name in BY_RESULT})


@pytest.mark.parametrize(("kind", "name"), KNOWN)
def test_pieces_give_what_the_command_gives(kind: str, name: str) -> None:
    cut = 0
    for example in EXAMPLES[name]:
        case = case_of(COMMANDS[name], example)
        graph = case.graph
        (node,) = graph.nodes
        for count in (2, 3):
            if way(node, kind, count) is None:
                continue
            made = splitted(graph, ((node.name, kind, count),)).graph
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
        (((product, BATCH, 2), (product, RESULT, 2)), "told twice"),
        (((mean, BATCH, 2),), "cannot be done in 2 pieces by batch"),
        (((product, RESULT, 102),), "cannot be done in 102 pieces"),
        (((product, "columns", 2),), "cannot be done in 2 pieces by columns"),
        (((product, ONTO, 1),), "adds no gradient"),
        (((total, ONTO, 2),), "adds no gradient"),
        (((product, EARLY, 1),), "no update"),
    ):
        with pytest.raises(PlanError, match=words):
            splitted(graph, splits)


def test_a_whole_is_called_as_no_other_node_is() -> None:
    """Found by the fuzz: a node may be called as a value is that another one gives."""
    text = "graph @g(%x: f32[4]) {\n %y: f32[4] = nn.relu(%x) @first\n %z: f32[4] = nn.tanh(%y) @y\n return %y, %z\n}"
    graph = splitted(sublet.parse(text), (("first", BATCH, 2),)).graph
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
    made = splitted(late, tuple((node.name, EARLY, 1) for node in updates)).graph
    verify(made)
    assert {node.name for node in made.nodes} == {node.name for node in given.nodes}
    written = [node.op for node in made.nodes]
    rounds = [i for i, op in enumerate(written) if op == "nn.tanh_gradient"]
    assert len(sums) == 8
    assert all("nn.gemm" in written[begin:end] for begin, end in pairwise(rounds[1:]))


@pytest.mark.parametrize("seed", range(6))
def test_steps_with_nodes_at_random_in_pieces(seed: int) -> None:
    """`python -m tests.fuzz_budget --pieces` goes on."""
    check_pieces(seed)
