"""Every pass keeps what a program computes, leaves a legal graph, and does nothing more the second time."""

from __future__ import annotations

import pytest

from sublet.ops.verify import verify
from sublet.passes.fusion import with_chains
from sublet.passes.pass_pipeline import PASSES, run_passes, simplify
from tests.passes.programs import nodes_of, program, same


@pytest.mark.parametrize("seed", range(6))
def test_every_pass_keeps_the_results_and_is_done_at_once(seed: int) -> None:
    graph = program(seed)
    changed = {name: run_passes(graph, [name]) for name in PASSES}
    same(graph, *(after for after in changed.values() if after != graph))
    for name, after in changed.items():
        assert run_passes(after, [name]) == after, name


@pytest.mark.parametrize("seed", range(8))
def test_all_passes_keep_the_results(seed: int) -> None:
    graph = program(seed, 50)
    changed = simplify(graph)
    same(graph, changed, tolerance=1e-12)
    assert nodes_of(changed) < nodes_of(graph)
    assert simplify(changed) == changed


@pytest.mark.parametrize("seed", range(8))
def test_chains_of_any_size_keep_the_results(seed: int) -> None:
    graph = program(seed, 40)
    changed = with_chains(graph, smallest=1)
    verify(changed)
    same(graph, changed)
    assert with_chains(changed, smallest=1) == changed
    assert any(node.op == "nn.chain" for node in changed.walk())
