"""The interface of the design "Memory Optimization" [seed 004]: its graph, its sets, and its program."""

from __future__ import annotations

import re

import pytest

from sublet.base.errors import ModelError, PlanError
from sublet.integrations.paddle.api import ControlFlowGraph, transpile
from tests.integrations.paddle.given import BESIDE

BOOK = (BESIDE / "book_mt_1.8.5.pb").read_bytes()
CONDITIONAL = (BESIDE / "cond.pb").read_bytes()
TRANSLATION = (BESIDE / "mt.pb").read_bytes()


def analysed(program: bytes) -> ControlFlowGraph:
    """Return the graph of a program with solved dataflow equations."""
    graph = ControlFlowGraph(program)
    graph.build()
    graph.dataflow_analysis()
    return graph


@pytest.mark.parametrize("program", [CONDITIONAL, TRANSLATION], ids=["conditional", "translation"])
def test_sets_satisfy_the_dataflow_equations(program: bytes) -> None:
    graph = analysed(program)
    assert len(graph.nodes) > 50
    for node in graph.nodes:
        after = frozenset().union(*(graph.live_in[follower] for follower in graph.successors[node]))
        assert graph.live_out[node] == after
        assert graph.live_in[node] == graph.uses[node] | (after - graph.defs[node] - graph.kills[node])
        assert {follower for follower in graph.nodes if node in graph.predecessors[follower]} == graph.successors[node]


def test_a_loop_is_a_back_edge_and_a_branch_two_edges() -> None:
    loop, branch = analysed(TRANSLATION), analysed(CONDITIONAL)
    assert any(follower < node for node, after in loop.successors.items() for follower in after)
    assert not any(follower < node for node, after in branch.successors.items() for follower in after)
    assert any(len(after) == 2 for after in branch.successors.values())
    assert any("while" in text for text in loop.nodes.values())


@pytest.mark.parametrize("policy", ["sublet", "seed"])
def test_memory_optimization_is_the_transpiler(policy: str) -> None:
    graph = analysed(CONDITIONAL)
    graph.memory_optimization(policy)
    assert graph.get_program() == transpile(CONDITIONAL, policy=policy)
    assert graph.get_program() != CONDITIONAL


def test_no_variables_to_skip_are_none_as_in_fluid() -> None:
    assert transpile(CONDITIONAL, skip_opt_set=None) == transpile(CONDITIONAL)
    assert ControlFlowGraph(CONDITIONAL, None).get_program() == CONDITIONAL


def test_steps_are_called_in_order() -> None:
    graph = ControlFlowGraph(CONDITIONAL)
    assert graph.get_program() == CONDITIONAL
    with pytest.raises(PlanError, match=r"call build\(\) before dataflow_analysis"):
        graph.dataflow_analysis()
    graph.build()
    with pytest.raises(PlanError, match=r"call dataflow_analysis\(\) before memory_optimization"):
        graph.memory_optimization()


def test_the_book_program_asks_for_all_extents_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError) as raised:
        transpile(BOOK)
    pasted = re.search(r"in Python shapes=(\{.*\}), dims=\{'sequences': 1\}, with", str(raised.value))
    assert pasted is not None
    names = re.findall(r"'(\w+)': \(1, 1\)", pasted.group(1))
    assert names == ["src_word_id", "target_language_word", "target_language_next_word"]
    assert transpile(BOOK, print_log=True, shapes=dict.fromkeys(names, (6, 1)), dims={"sequences": 2}) != BOOK
    assert "proven to compute the same for src_word_id=[6,1], " in capsys.readouterr().err
