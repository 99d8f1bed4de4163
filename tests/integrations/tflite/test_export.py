"""TFLM out: a plan in the metadata of a file, everything else as it was, and what the interpreter makes of it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sublet.analysis.options import Options
from sublet.base.errors import ModelError, PlanError
from sublet.checker import judge
from sublet.checker.external import Evidence, ForeignOutcome, judge_by_replay
from sublet.integrations.tflite import plan_offsets as tflm
from sublet.integrations.tflite.offline_plan import (
    METADATA,
    Text,
    encode_offsets,
    offline_plan,
    with_offline_plan,
    with_operator_order,
)
from sublet.integrations.tflite.plan_offsets import (
    OffsetSelection,
    in_planned_order,
    lost_tensors,
    offsets_of_plan,
    plan_from_tflite,
    select_offsets,
)
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import ALIGNMENT, from_program
from sublet.packing import MemoryRegion
from sublet.planning.pipeline import plan_memory
from tests.integrations.tflite.generated import Network, residual, straight, streaming
from tests.integrations.tflite.in_tflm import run_many
from tests.integrations.tflite.written import ADD, G, O, branch, chain, counting, loop, tflite
from tests.support.command_line import Cli

MODELS: dict[str, Callable[[], bytes]] = {
    "chain": chain,
    "branch": branch,
    "loop": loop,
    "counting": counting,
    "residual": residual,
    "streaming": streaming,
    **{f"straight{seed}": lambda seed=seed: straight(seed) for seed in range(8)},  # type: ignore[misc]
}
needs_tflm = pytest.mark.skipif(not tflm.is_available(), reason=f"needs the package {tflm.PACKAGE}")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `sublet` in this process."""
    return Cli(monkeypatch, capsys)


def exported(raw: bytes, name: str = "model") -> OffsetSelection:
    program = decode(raw, name)
    plan = plan_memory(from_program(program), Options(alignment=ALIGNMENT))
    return select_offsets(raw, program, offsets_of_plan(program, plan))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_planned_reads_back_with_nothing_else_changed(name: str) -> None:
    raw = MODELS[name]()
    program = decode(raw, name)
    offsets = offsets_of_plan(program, plan_memory(from_program(program), Options(alignment=ALIGNMENT)))
    planned = with_offline_plan(raw, name, encode_offsets(offsets))
    assert planned.endswith(raw)
    assert offline_plan(decode(planned, name)) == offsets
    assert with_offline_plan(planned, name, encode_offsets(offsets)) == planned, (
        "a plan of the same length is written in its place"
    )
    bare = decode(with_offline_plan(planned, name, None), name)
    assert offline_plan(bare) is None
    assert bare.subgraphs == program.subgraphs


@needs_tflm
@pytest.mark.parametrize("name", MODELS)
def test_the_schema_of_tflm_reads_everything_else_as_it_was(name: str) -> None:
    schema = pytest.importorskip("tflite_micro.tensorflow.lite.micro.python.schema_py_generated")
    raw = MODELS[name]()
    offsets = [[0] * len(subgraph.tensors) for subgraph in decode(raw, name).subgraphs]
    planned = with_offline_plan(raw, name, encode_offsets(offsets))
    old, new = (schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(each, 0)) for each in (raw, planned))
    assert new.metadata.pop().name.decode() == METADATA
    new.buffers.pop()
    new.metadata = new.metadata or None
    assert told(old) == told(new)


def told(thing: Any) -> Any:
    """All that an object of the schema says."""
    if hasattr(thing, "__dict__"):
        return {name: told(value) for name, value in vars(thing).items()}
    if isinstance(thing, list):
        return [told(each) for each in thing]
    return thing.tolist() if hasattr(thing, "tolist") else thing


@needs_tflm
@pytest.mark.parametrize("name", MODELS)
def test_tflm_computes_the_same_and_needs_no_more(name: str) -> None:
    choice = exported(MODELS[name](), name)
    assert choice.with_plan.outputs == choice.without_plan.outputs
    assert choice.with_plan.total <= choice.without_plan.total
    assert choice.with_plan.smallest <= choice.without_plan.smallest
    if choice.how == "none":
        assert offline_plan(decode(choice.raw, name)) is None


@needs_tflm
@pytest.mark.parametrize("name", ["chain", "residual", "streaming", "counting"])
def test_tflm_needs_less_where_outputs_are_written_over_inputs(name: str) -> None:
    choice = exported(MODELS[name](), name)
    assert choice.with_plan.head < choice.without_plan.head
    assert choice.with_plan.total < choice.without_plan.total


@needs_tflm
@pytest.mark.parametrize("name", MODELS)
def test_tflm_allocates_before_the_first_run(name: str) -> None:
    raw = MODELS[name]()
    main = decode(raw, name).subgraphs[0]
    trials = [tflm.Trial(raw, len(main.inputs), len(main.outputs), runs) for runs in (0, 8)]
    before, after = tflm.run_trials(trials)
    assert (before.refused, before.head, before.total) == ("", after.head, after.total)


@needs_tflm
@pytest.mark.parametrize("name", MODELS)
def test_only_offsets_that_save_bytes_are_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a large model takes seconds, and there are 64 choices a round."""
    ran: list[int] = []
    run_trials = tflm.run_trials

    def count(trials: Any) -> Any:
        ran.extend(trial.runs for trial in trials)
        return run_trials(trials)

    monkeypatch.setattr(tflm, "run_trials", count)
    choice = exported(MODELS[name](), name)
    assert 0 in ran
    if choice.how == "all":
        assert [runs for runs in ran if runs] == [tflm.RUNS_PER_TRIAL] * 2


@needs_tflm
def test_what_is_judged_right_computes_the_same() -> None:
    tally = run_many(24)
    assert tally["ours: equal"] + tally["ours, in another order: equal"] == 16
    assert tally["ours, in another order: equal"]
    assert tally["mutated, refused: different"]


@needs_tflm
def test_a_wrong_plan_is_not_handed_out() -> None:
    raw = chain()
    with pytest.raises(PlanError, match="computes other outputs"):
        select_offsets(raw, decode(raw, "wrong"), ((0, 32, 16),))


def test_a_plan_that_tflm_cannot_follow_is_refused() -> None:
    program = decode(straight(3), "straight")
    model = from_program(program)
    for options, words in (
        (Options(alignment=8), "--align 16"),
        (Options(alignment=16, regions=(MemoryRegion("a", 1 << 20), MemoryRegion("b", 1 << 20))), "without --region"),
    ):
        with pytest.raises(PlanError, match=words):
            offsets_of_plan(program, plan_memory(model, options))
    with pytest.raises(PlanError, match="without --streams"):
        in_planned_order(straight(3), program, plan_memory(model, Options(alignment=16, streams=2)))


@pytest.mark.parametrize("dtype", ["i8", "f32"])
def test_reads_of_variables_move_to_their_readers(dtype: str) -> None:
    """Converters read all variables first. TFLM computes the same from the file in the planned order, run after run."""
    raw = reads_first(streaming(dtype=dtype))
    program, options = decode(raw, "reads first"), Options(alignment=ALIGNMENT, order="less")
    model = from_program(program)
    plan = plan_memory(model, options)
    assert plan.arena_bytes < 0.8 * plan_memory(model, replace(options, order="given")).arena_bytes
    assert not judge(model.graph, plan.schedule, plan).findings
    reordered = in_planned_order(raw, program, plan)
    assert sorted(map(str, decode(reordered, "moved").subgraphs[0].operators)) == sorted(
        map(str, program.subgraphs[0].operators)
    )
    assert len(reordered) == len(raw)
    if not tflm.is_available():
        return
    choice = select_offsets(raw, program, offsets_of_plan(program, plan), reordered)
    assert choice is not None
    assert choice.how != "none"
    assert choice.with_plan.outputs == choice.without_plan.outputs
    assert choice.with_plan.head < choice.without_plan.head


def reads_first(raw: bytes) -> bytes:
    """The same network with the handles and reads of all variables before all other operators."""
    names = [operator.name for operator in decode(raw, "streaming").subgraphs[0].operators]
    rank = {"CALL_ONCE": 0, "VAR_HANDLE": 1, "READ_VARIABLE": 2}
    return with_operator_order(raw, "streaming", sorted(range(len(names)), key=lambda i: (rank.get(names[i], 3), i)))


def test_a_read_behind_the_assignment_is_refused() -> None:
    """The file would hold the new content where the plan reads the old content."""
    net = Network(random.Random(1), "f32")
    x, handle, before, y = net.given((2, 24)), net.tensor((), None, "resource"), *(net.tensor((2, 24)) for _ in "ab")
    net.operators += [
        O("VAR_HANDLE", (), (handle,), (111, {0: Text(""), 1: Text("rows")})),
        O("READ_VARIABLE", (handle,), (before,)),
        O("ASSIGN_VARIABLE", (handle, x), ()),
        O("ADD", (before, x), (y,), ADD),
    ]
    raw = tflite(G(net.tensors, net.operators, net.inputs, [y]))
    program = decode(raw, "rows")
    model = from_program(program)
    less = plan_memory(model, Options(alignment=ALIGNMENT, order="less"))
    assert in_planned_order(raw, program, less)
    handle_node, read, assign, add = model.graph.nodes
    moved = replace(model, graph=replace(model.graph, nodes=(handle_node, assign, read, add)))
    plan = plan_memory(moved, Options(alignment=ALIGNMENT))
    with pytest.raises(PlanError, match="operators read other values"):
        in_planned_order(raw, program, plan)


def test_what_branches_are_given_and_give_is_placed_and_what_is_inside_left_to_tflm() -> None:
    program = decode(branch(), "branch")
    (main, *others) = offsets_of_plan(program, plan_memory(from_program(program), Options(alignment=ALIGNMENT)))
    assert None not in main
    assert {offset for subgraph in others for offset in subgraph} == {None}


AT_ONE_GO = {
    "over an operand that is copied after it": (64, 0, 0, 80),
    "over the begin of another": (96, 16, 144, 0),
    "over each other": (0, 32, 96, 96),
}
"""Offsets of what a loop is given, n and x, and of what it gives, that do not survive copies one after another."""


@needs_tflm
def test_operands_that_do_not_survive_their_copies_are_refused_and_not_told() -> None:
    raw = loop()
    assert list(lost_tensors(decode(raw, "loop"), (0, 16, 0, 16))) == [], "each result in the place of its operand"
    for which, main in AT_ONE_GO.items():
        program = decode(with_offline_plan(raw, which, encode_offsets([main, [None] * 4, [None] * 5])), which)
        found = judge_by_replay(from_program(program), plan_from_tflite(program))
        assert any("one tensor after another" in str(finding) for finding in found.findings), which
    which, main = next(iter(AT_ONE_GO.items()))  # with the others the loop may not end
    wrong = with_offline_plan(raw, which, encode_offsets([main, [None] * 4, [None] * 5]))
    own, first = tflm.run_trials([tflm.Trial(raw, 2, 2, runs=6), tflm.Trial(wrong, 2, 2, runs=6)])
    assert first.outputs != own.outputs, "TFLM does copy one after another"


def test_the_plan_in_a_file_is_judged() -> None:
    raw = chain()
    program = decode(with_offline_plan(raw, "right", encode_offsets([[0, 64, 64]])), "right")
    assert judge_by_replay(from_program(program), plan_from_tflite(program)).outcome is ForeignOutcome.RIGHT
    program = decode(with_offline_plan(raw, "wrong", encode_offsets([[0, 32, 0]])), "wrong")
    found = judge_by_replay(from_program(program), plan_from_tflite(program))
    assert found.evidence is Evidence.REPLAY
    assert found.outcome is ForeignOutcome.WRONG
    assert any("x" in str(finding) and "y" in str(finding) for finding in found.findings)


@pytest.mark.parametrize("name", ["chain", "loop", "streaming"])
def test_a_file_that_leaves_all_places_to_tflm_is_not_judged(cli: Cli, tmp_path: Path, name: str) -> None:
    model = tmp_path / "planned.tflite"
    model.write_bytes(MODELS[name]())
    status, words, _ = cli("check", model)
    assert (status, "nothing judged: the file has no offset for any of" in words) == (3, True)
    assert "TensorFlow Lite Micro's own plan" in words
    content = json.loads(cli("check", model, "--json")[1])
    graph = from_program(decode(model.read_bytes(), name)).graph
    assert (content["outcome"], content["judged"], content["violations"]) == ("partly judged", [], [])
    assert {value.name for value in (*graph.inputs, *graph.outputs)} <= content["not_judged"].keys()
    assert content["not_judged"].keys().isdisjoint(weight.name for weight in graph.constants)


@needs_tflm
def test_a_file_where_the_export_kept_the_plan_of_tflm_is_checked(cli: Cli, tmp_path: Path) -> None:
    model, plan, out = tmp_path / "m.tflite", tmp_path / "plan.json", tmp_path / "planned.tflite"
    model.write_bytes(straight(1))
    assert cli("plan", model, "--align", 16, "--out", plan)[0] == 0
    assert "own plan, the smallest, is kept" in cli("export", model, "--plan", plan, "--to", "tflm", "--out", out)[1]
    assert cli("check", out)[0] == 3


def test_export_as_a_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan, out = tmp_path / "m.tflite", tmp_path / "plan.json", tmp_path / "planned.tflite"
    model.write_bytes(chain())
    assert cli("plan", model, "--align", 16, "--out", plan)[0] == 0
    if tflm.is_available():
        status, words, _ = cli("export", model, "--plan", plan, "--to", "tflm", "--out", out)
        assert status == 0
        assert "tensors and scratch 128 B instead of 192 B" in words
        assert cli("check", out)[0] == 0
        smallest = int(re.search(r"smallest arena +([\d,]+) B", words)[1].replace(",", ""))
        for budget, expected, verdict in (
            (smallest, 0, "Fits the"),
            (smallest - 1, 1, "Does not fit the"),
        ):
            status, words, _ = cli("export", model, "--to", "tflm", "--out", out, "--budget", budget)
            assert (status, words.startswith(verdict)) == (expected, True)
        found = json.loads(cli("export", model, "--to", "tflm", "--out", out, "--budget", 64, "--json")[1])
        assert (found["fits"], found["needed_bytes"], found["files"]) == (False, smallest, [str(out)])
        assert found["written"]["head_bytes"] < found["own_plan"]["head_bytes"]
    monkeypatch.setattr(tflm, "MODULE", "no_such_module")
    for budget, expected in ((1 << 20, 3), (64, 1)):  # the records of TFLM are unknown, the tensors are known
        assert cli("export", model, "--plan", plan, "--to", "tflm", "--out", out, "--budget", budget)[0] == expected
    status, words, _ = cli("export", model, "--plan", plan, "--to", "tflm", "--out", out)
    assert status == 0
    assert "not proven" in words
    assert offline_plan(decode(out.read_bytes(), "out")) == ((0, 64, 64),)


def test_export_says_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    model, text = tmp_path / "m.tflite", tmp_path / "m.sublet"
    model.write_bytes(chain())
    text.write_text("graph @g(%x: f32[4]) {\n  return %x\n}\n", encoding="utf-8")
    for words, expected in (
        ((text, "--to", "tflm", "--out", tmp_path / "o"), "is of another format"),
        ((model, "--to", "tflm", "--out", model), "overwrite"),
        ((model, "--to", "tflm", "--out", tmp_path / "o", "--align", 4), "--align 16"),
        ((model, "--to", "tflm", "--out", tmp_path / "o", "--section", ".bss"), "--section is not for tflm"),
    ):
        status, _, said = cli("export", *words)
        assert status == 2
        assert expected in said
    assert "--recompute" not in cli("plan", model, "--budget", "64")[1], "no pass changes what TFLM runs"


def test_a_file_that_is_not_whole_cannot_be_changed() -> None:
    raw = bytearray(chain())
    raw[4:8] = b"TFL4"
    with pytest.raises(ModelError, match="TFL3"):
        with_offline_plan(bytes(raw), "other", b"")
