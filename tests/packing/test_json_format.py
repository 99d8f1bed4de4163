"""JSON files with a partial order, and what is wrong with bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sublet.base.errors import ProblemError
from sublet.packing import STRATEGIES, Companion, check_packing, lower_bound, read_json

HERE = Path(__file__).parent / "problems"


def block(id: int | str, head: list[int], tail: list[int], size: int = 64, **more: Any) -> dict[str, Any]:
    return {"id": id, "size": size, "type": 1, "companion": -1, "head": head, "tail": tail, **more}


def document(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Nodes 0 -> 1 -> 2 -> 3 and 0 -> 3, and 4 by itself."""
    edges = [[0, 1], [1, 2], [2, 3], [0, 3]]
    return {"alignment": 64, "nodes": 5, "order": [0, 1, 2, 3, 4], "deps": edges, "blocks": list(blocks), **more}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_distances_are_longest_paths_from_tail_to_head(tmp_path: Path) -> None:
    blocks = [block(7, [0], [0]), block(8, [3], [3]), block(9, [4], [4]), block(10, [1], [2]), block(11, [0], [1])]
    problem = read_json(written(tmp_path, document(*blocks)))
    assert problem.precedence is not None
    assert problem.precedence.distance.tolist() == [
        [0, 3, 0, 1, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 2, 0, 0, 0],
    ]
    assert [(b.id, b.lower, b.upper, b.alignment) for b in problem.buffers] == [
        ("7", 0, 1, 64),
        ("8", 3, 4, 64),
        ("9", 4, 5, 64),
        ("10", 1, 3, 64),
        ("11", 0, 2, 64),
    ]


def test_every_tail_must_run_before_every_head(tmp_path: Path) -> None:
    problem = read_json(written(tmp_path, document(block(0, [0], [0, 4]), block(1, [1], [3]), block(2, [0], [0]))))
    assert problem.precedence is not None
    assert problem.precedence.distance.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_distance_is_the_longest_of_all_tails_and_heads(tmp_path: Path) -> None:
    blocks = [block(0, [0], [0, 2]), block(1, [3], [3])]
    problem = read_json(written(tmp_path, document(*blocks)))
    assert problem.precedence is not None
    assert problem.precedence.distance.tolist() == [[0, 3], [0, 0]]


def test_order_may_leave_nodes_out(tmp_path: Path) -> None:
    """As in unrolled loops: the rest follows as the edges allow."""
    problem = read_json(written(tmp_path, document(block(0, [3], [3]), block(1, [4], [4]), order=[4, 0])))
    assert [(b.lower, b.upper) for b in problem.buffers] == [(4, 5), (0, 1)]


def test_memory_kinds_never_share(tmp_path: Path) -> None:
    """Two kinds, each two blocks one after the other: 64 + 128 bytes, as two arenas would need."""
    blocks = [block(0, [0], [0]), block(1, [1], [1], 128, type=2), block(2, [2], [2]), block(3, [3], [3], 128, type=2)]
    problem = read_json(written(tmp_path, document(*blocks)))
    assert lower_bound(problem).bytes == 192
    for name, strategy in STRATEGIES.items():
        packing = strategy(problem)
        check_packing(problem, packing)
        assert packing.arena_bytes == (384 if name == "no_reuse" else 192)


def test_pins_distances_and_pairs_that_may_overlap(tmp_path: Path) -> None:
    blocks = [
        block(7, [0], [1], pinned=64, accesses=3),
        block("x", [0], [1], companion=7, distance=8),
        block(3, [1], [2], companion="x", distance=-4),
    ]
    made = {**document(*blocks, may_overlap=[["x", 7], [3, "x"]]), "alignment": 4}
    problem = read_json(written(tmp_path, made))
    assert [(b.pinned, b.accesses) for b in problem.buffers] == [(64, 3), (None, 1), (None, 1)]
    assert problem.companions == (Companion(0, 1, 8), Companion(1, 2, -4))
    assert problem.may_overlap == ((0, 1), (1, 2))


def test_companions_and_no_blocks(tmp_path: Path) -> None:
    problem = read_json(HERE / "unit_while.15.json")
    ids = [buffer.id for buffer in problem.buffers]
    assert [(ids[c.first], ids[c.second]) for c in problem.companions] == [("0", "18"), ("5", "24"), ("9", "30")]
    assert read_json(written(tmp_path, document())).buffers == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not valid JSON"),
        ("[1", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "must be one JSON object, not \\[\\]"),
        ({"blocks": []}, "alignment: is missing"),
        (document(alignment=True), "alignment: must be an integer, not True"),
        (document(block(0, [0], [0]), alignment=0), "blocks\\[0\\]: buffer 0: alignment 0 must be"),
        (document(blocks={}), "blocks: must be a list, not {}"),
        (document(blocks=[3]), "blocks\\[0\\]: must be an object, not 3"),
        (document(blocks=[{"id": 1}]), "blocks\\[0\\].head: is missing"),
        (document(block(0, [], [0])), "blocks\\[0\\].head: is empty"),
        (document(block(0, [0], ["a"])), "blocks\\[0\\].tail\\[0\\]: must be an integer, not 'a'"),
        (document(block(0, [0], [0], -64)), "blocks\\[0\\]: buffer 0: size -64 must be"),
        (document(block(0, [0], [0], 1.5)), "blocks\\[0\\].size: must be an integer, not 1.5"),  # type: ignore[arg-type]
        (document(block(0, [1], [0])), "blocks\\[0\\]: no path leads from a head node to a tail node"),
        (document(block(0, [0], [0]), block(0, [1], [1])), "blocks\\[1\\].id: '0' is the id of blocks\\[0\\] too"),
        (document(block(0, [0], [0], companion=5)), "blocks\\[0\\].companion: '5' is not the id of another block"),
        (document(block(0, [0], [0], companion=0)), "blocks\\[0\\].companion: '0' is not the id of another block"),
        (
            document(block(0, [0], [0], companion=None)),
            "blocks\\[0\\].companion: must be an integer or a text, not None",
        ),
        (document(block(0, [0], [0], distance="4")), "blocks\\[0\\].distance: must be an integer, not '4'"),
        (document(block(0, [0], [0], pinned=None)), "blocks\\[0\\].pinned: must be an integer, not None"),
        (document(block(0, [0], [0], pinned=32)), "blocks\\[0\\]: buffer 0: pinned 32 must be a multiple"),
        (document(block(0, [0], [0]), may_overlap=[[0, 0]]), "may_overlap\\[0\\]: must be the ids of two blocks"),
        (document(deps=[[0, 1, 2]]), "deps\\[0\\]: must be a pair"),
        (document(deps=[[0, 1], [1, 0]]), "deps: the edges form a cycle"),
        (document(deps=[[0, 0]]), "deps: the edges form a cycle"),
        (document(order=[0, 0]), "order: names a node twice"),
        (document(order=list(range(20_000))), "blocks: 20000 nodes and 0 blocks; at most 16384"),
    ],
)
def test_bad_files(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=f"problem.json: {message}"):
        read_json(written(tmp_path, content))
