"""TensorFlow Lite models in: what a file says, and the graph that it becomes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import ModelError, SubletError
from sublet.base.flatbuffer import Wire
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.tflite.offline_plan import (
    METADATA,
    ItemVector,
    KeptItem,
    TableRecord,
    encode_flatbuffer,
    encode_offsets,
    offline_plan,
)
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import from_program
from sublet.ir.graph import CaseOf, While
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx.damage import judge_many
from tests.integrations.tflite.hostile import MODELS
from tests.integrations.tflite.written import ADD, G, O, T, branch, chain, counting, integer, loop, tflite
from tests.support.command_line import Cli


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `sublet` in this process."""
    return Cli(monkeypatch, capsys)


def test_a_chain_is_read_with_its_names_and_specs() -> None:
    graph = from_program(decode(chain(), "chain")).graph
    assert [value.name for value in graph.inputs + graph.outputs] == ["x", "z"]
    assert [node.op for node in graph.nodes] == ["tflite.ADD", "tflite.ADD"]
    assert graph.outputs[0].spec == TensorSpec(DType.F32, (1, 16))


def test_constants_are_weights_with_their_contents() -> None:
    tensors = [T((2, 3)), T((2, 3), content=np.arange(6).reshape(2, 3)), T((2, 3))]
    model = from_program(decode(tflite(G(tensors, [O("ADD", (0, 1), (2,), ADD)], [0], [2])), "weights"))
    assert np.array_equal(model.weights["t1"].array(), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert plan_memory(model).total_bytes == 48


def test_a_branch_has_two_arms() -> None:
    graph = from_program(decode(branch(), "branch")).graph
    (case,) = (node for node in graph.nodes if isinstance(node, CaseOf))
    assert [arm.nodes[0].op for arm in case.arms] == ["tflite.MUL", "tflite.ADD"], "arm 0 runs when it is false"
    assert plan_memory(graph).total_bytes == 1 + 5 * 64


def test_a_loop_carries_its_operands() -> None:
    graph = from_program(decode(loop(), "loop")).graph
    (turn,) = graph.nodes
    assert isinstance(turn, While)
    assert turn.carried == 2
    assert turn.check == 1
    plan_memory(graph)


def test_a_resource_is_state_in_its_own_place() -> None:
    model = from_program(decode(counting(), "counting"))
    targets = {target.name for target, _ in model.graph.updates}
    assert targets == {"sum", "initialised"}
    plan = plan_memory(model)
    assert sum(move.nbytes for move in plan.moves if move.destination == "sum") == 0
    assert "sum.next" not in {place.value for place in plan.in_arenas}


def test_a_variable_tensor_is_state() -> None:
    tensors = [T((1, 4)), T((1, 4), variable=True, name="memory"), T((1, 4))]
    graph = from_program(decode(tflite(G(tensors, [O("SVDF", (0, 1), (2,))], [0], [2])), "svdf")).graph
    assert [(target.name, source.name) for target, source in graph.updates] == [("memory", "memory.next")]
    assert plan_memory(graph, Options(alignment=16)).arena_bytes == 16, "the output lies over the input"


def test_what_is_quantised_is_told_where_the_node_comes_from() -> None:
    tensors = [T((1, 4), "i8", scale=0.5, zero=-3), T((1, 4), "i8", scale=0.25, zero=7)]
    graph = from_program(decode(tflite(G(tensors, [O("LOGISTIC", (0,), (1,))], [0], [1])), "quantised")).graph
    assert graph.nodes[0].source == "operator 0: scale 0.25, zero point 7"


def test_an_open_extent_is_told() -> None:
    tensors = [T((1, 4), signature=(-1, 4)), T((1, 4))]
    model = from_program(decode(tflite(G(tensors, [O("RELU", (0,), (1,))], [0], [1])), "open"))
    assert "open" in str(model.warnings[0])


def test_the_verdict_on_an_open_extent_names_the_condition(cli: Cli, tmp_path: Path) -> None:
    tensors = [T((1, 4), signature=(-1, 4)), T((1, 4))]
    (tmp_path / "m.tflite").write_bytes(tflite(G(tensors, [O("RELU", (0,), (1,))], [0], [1])))
    status, out, _ = cli("plan", tmp_path / "m.tflite", "--budget", "1K")
    assert status == 0
    first = out.splitlines()[0]
    assert first.startswith("Fits the budget of 1 KiB")
    assert "for the extents stored in the file alone" in first


def test_equal_names_stay_apart() -> None:
    tensors = [T((1, 4), name="a"), T((1, 4), name="a"), T((1, 4), name="a")]
    graph = from_program(
        decode(tflite(G(tensors, [O("ADD", (0, 0), (1,)), O("ADD", (1, 1), (2,))], [0], [2])), "a")
    ).graph
    assert [value.name for value in graph.values()] == ["a", "a#2", "a#3"]


def recursion() -> bytes:
    told = (92, {0: integer(1), 1: integer(1)})
    arm = G([T((1, 16)), T((), "bool", content=True), T((1, 16))], [O("IF", (1, 0), (2,), told)], [0], [2])
    return tflite(G([T((1, 16)), T((), "bool"), T((1, 16))], [O("IF", (1, 0), (2,), told)], [0, 1], [2]), arm)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (recursion, "recursive"),
        (lambda: tflite(G([T((4,)), T((4,))], [O("RELU", (1,), (0,))], [], [0])), "is read before a write"),
        (lambda: tflite(G([T((4,)), T((4,))], [O("RELU", (0,), (0,))], [0], [0])), "written twice"),
        (lambda: tflite(G([T((4,)), T((4,), content=1)], [O("RELU", (0,), (1,))], [0], [1])), "a constant, is written"),
        (lambda: tflite(G([T((4,)), T((-4,))], [O("RELU", (0,), (1,))], [0], [1])), "negative dimension"),
        (lambda: tflite(G([T((4,)), T((4,))], [O("RELU", (0,), (7,))], [0], [1])), "no tensor 7"),
        (lambda: tflite(), "no subgraph"),
        (lambda: b"", "expected here"),
        (lambda: chain()[:100], "of which"),
    ],
)
def test_what_cannot_be_followed_is_refused(make: Callable[[], bytes], words: str) -> None:
    with pytest.raises(SubletError, match=words) as refusal:
        plan_memory(from_program(decode(make(), "bad.tflite")))
    assert "bad.tflite" in str(refusal.value)


def test_damaged_files_are_dealt_with() -> None:
    tally = judge_many(MODELS, 300)
    assert sum(tally.values()) == 300
    assert min(tally["refused"], tally["read as a model"]) > 20


def test_subgraphs_that_call_each_other_again_and_again_are_refused() -> None:
    def call(called: int) -> G:
        tensors = [T((4,)), T((), "bool", content=True), T((4,)), T((4,))]
        told = (92, {0: integer(called), 1: integer(called)})
        return G(tensors, [O("IF", (1, 0), (2,), told), O("IF", (1, 2), (3,), told)], [0], [3])

    last = G([T((4,)), T((4,))], [O("RELU", (0,), (1,))], [0], [1])
    with pytest.raises(ModelError, match="once a call"):
        from_program(decode(tflite(*(call(i + 1) for i in range(40)), last), "bomb"))


def test_a_file_that_says_one_thing_a_thousand_times_is_refused() -> None:
    raw = tflite(*[G([T((4,)) for _ in range(300)], [], [], [])] * 1)
    root = Wire(raw, "bomb", "").root(b"TFL3")
    (only,) = root.tables(2)
    fields = {number: KeptItem(root.offset_target(number) or 0) for number in root.fields if number not in (0, 2)}
    many = ItemVector([KeptItem(only.at)] * 1000)
    with pytest.raises(ModelError, match="too often"):
        decode(encode_flatbuffer(TableRecord({**fields, 2: many}), b"TFL3", raw), "bomb")


def test_a_buffer_of_another_size_is_refused() -> None:
    raw = tflite(G([T((4,)), T((4,), content=1), T((4,))], [O("ADD", (0, 1), (2,))], [0], [2]))
    at = raw.index(struct.pack("<I4f", 16, 1, 1, 1, 1))
    with pytest.raises(ModelError, match="16 bytes; its buffer has 12"):
        from_program(decode(raw[:at] + struct.pack("<I", 12) + raw[at + 4 :], "short"))


def test_the_offline_plan_in_a_file() -> None:
    content = encode_offsets([[0, None, 64], [None]])
    tensors = [T((1, 16)), T((1, 16)), T((1, 16))]
    main = G(tensors, [O("ADD", (0, 0), (1,)), O("ADD", (1, 0), (2,))], [0], [2])
    raw = tflite(main, G([T((4,))], [], [0], [0]), metadata=[(METADATA, content)])
    assert offline_plan(decode(raw, "planned")) == ((0, None, 64), (None,))
    assert offline_plan(decode(chain(), "unplanned")) is None
    with pytest.raises(ModelError, match="4 offsets"):
        offline_plan(decode(tflite(main, metadata=[(METADATA, content)]), "another"))


def test_plan_check_and_run_as_commands(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(counting())
    told = "--out", tmp_path / "plan.json", "--html", tmp_path / "plan.html", "--json"
    assert cli("plan", tmp_path / "m.tflite", *told)[0] == 0
    assert cli("check", tmp_path / "m.tflite", tmp_path / "plan.json")[0] == 0
    status, _, words = cli("run", tmp_path / "m.tflite", "--random", 0)
    assert status == 2
    assert "has a kernel for tflite." in words
    assert isinstance(sublet.read_model(tmp_path / "m.tflite"), sublet.Model)
