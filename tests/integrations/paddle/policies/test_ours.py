"""Sublet's own policy for Paddle programs: each pass, what it may not touch, and what it saves by prediction.

What the passes give is judged by the checker, which knows nothing of them; `test_in_paddle.py` runs it in Paddle.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from sublet.base.tensor import DType
from sublet.integrations.paddle.checking import judge_equivalence
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleAttr, PaddleBlock, PaddleOp, PaddleProgram, new_op, new_var
from sublet.integrations.paddle.operators.dialect import effects_of
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.memory import predict_memory
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.policies import PASSES, apply_own_policy
from sublet.integrations.paddle.policies.inplace import rename_in_place, use_shape_proxies
from sublet.integrations.paddle.policies.policy import add_update_barriers, run_updates_early
from sublet.integrations.paddle.policies.rename_constraints import rename_constraints
from tests.integrations.paddle.written import runs, straight, tensors

PROGRAMS = Path(__file__).parents[1] / "programs"
LOSSES = {"mt": "mean_2.tmp_0", "cond": "mean_1.tmp_0", "transformer": "mean_1.tmp_0"}


def given(name: str) -> PaddleProgram:
    return decode_program((PROGRAMS / f"{name}.pb").read_bytes(), name)


@pytest.mark.parametrize(("name", "change"), [*product(("cond", "transformer"), PASSES), *((n, "all") for n in LOSSES)])
def test_each_pass_changes_no_bit(name: str, change: str) -> None:
    program, loss = given(name), [LOSSES[name]]
    changed = apply_own_policy(program, loss) if change == "all" else PASSES[change](program, loss)
    judgement = judge_equivalence(program, changed, infer_sizes(program), keep=loss)
    assert judgement.equal, judgement.findings[:3]
    assert judgement.every_way
    assert decode_program(encode_program(changed), name) == changed


@pytest.mark.parametrize("name", LOSSES)
def test_a_pass_done_twice_does_nothing_more(name: str) -> None:
    for change in PASSES.values():
        once = change(given(name), [LOSSES[name]])
        assert change(once, [LOSSES[name]]) == once


def test_machine_translation_holds_a_quarter() -> None:
    program, loss = given("mt"), LOSSES["mt"]
    keep = frozenset({ScopedVariable(0, loss)})
    before, after = (predict_memory(infer_sizes(each), keep) for each in (program, apply_own_policy(program, [loss])))
    assert before.collected.peak == 49_167_894
    assert after.collected.peak < 11_700_000


def kept(program: PaddleProgram, body: int, gradient: int) -> int:
    """Bytes of the forward values of a body that its gradient block mentions: Paddle keeps them for every trip."""
    mentioned = {name for op in program.blocks[gradient].ops for name in op.reads}
    sizes = infer_sizes(program)
    return sum(sizes.nbytes(body, name) for name in mentioned & program.blocks[body].vars.keys())


def test_the_decoder_keeps_what_its_gradient_reads() -> None:
    """Bytes of one trip, copies of what the loop takes apart."""
    program = given("mt")
    assert kept(program, 2, 3) > 800_000
    assert kept(use_shape_proxies(program), 2, 3) < 150_000


def test_a_loop_assigns_to_itself_what_it_only_reads() -> None:
    program = PASSES["loop invariants"](given("mt"), ())
    first = [op for op in program.blocks[1].ops if op.inputs == {"X": op.writes}]
    assert {op.writes for op in first} == {("transpose_0.tmp_0",)}
    assert program.blocks[1].ops[0] in first
    assert all(block == other for block, other in zip(program.blocks[3:], given("mt").blocks[3:], strict=True))


# What is never renamed.


def test_the_gradient_that_a_branch_finds_by_name() -> None:
    """The transpiler of 2019 renamed it, and trained wrong."""
    assert "looks up the gradient by name" in rename_constraints(given("cond"))["relu_0.tmp_0@GRAD"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kept", "the caller keeps"),
        ("weight", "outlives the run"),
        ("array", "not a tensor"),
        ("open", "size is unknown"),
        ("taken", "while looks up the name"),
        ("taken@GRAD", "looks up the gradient by name"),
        ("told", "an attribute of dropout contains the name"),
        ("twice", "several blocks declare the name"),
        ("inner", "block 2 uses the name"),
        ("nowhere", "no block declares the name"),
        ("fed", "the caller feeds"),
        ("fetched", "the caller may fetch"),
    ],
)
def test_what_is_never_renamed(name: str, reason: str) -> None:
    assert reason in rename_constraints(touchy(), ["kept"])[name]


def test_what_may_be_renamed() -> None:
    assert not {"free", "forward"} & rename_constraints(touchy(), ["kept"]).keys()


def touchy() -> PaddleProgram:
    """A loop, its gradient and a block beside them, with one name for each reason, and two without."""
    names = ("kept", "taken", "taken@GRAD", "told", "twice", "fed", "fetched", "free")
    first = tensors(*names) | tensors("weight", persistable=True) | tensors("open", dims=(4, -1))
    first["array"] = new_var("array", DType.F32, (4,), kind="TENSOR_ARRAY")
    first["scopes"] = new_var("scopes", None, kind="STEP_SCOPES")
    written = ("kept", "taken", "taken@GRAD", "told", "twice", "free")
    ops = [new_op("relu", {"X": ["fed"]}, {"Out": [name]}) for name in written]
    ops += [new_op("relu", {"X": [name]}, {"Out": ["fetched"]}) for name in ("nowhere", *written)]
    ops.append(new_op("dropout", {"X": ["free"]}, {"Out": ["free"]}, {"seed_name": "told"}))
    ops.append(runs("while", 1, {"X": ["taken"]}, {"Out": ["taken"], "StepScopes": ["scopes"]}))
    ops.append(runs("while_grad", 2, {"X": ["taken"], "StepScopes": ["scopes"]}, {"X@GRAD": ["taken@GRAD"]}))
    ops.append(runs("conditional_block", 3, {"Cond": ["taken"]}, {"Out": []}))
    body = [new_op("relu", {"X": ["taken"]}, {"Out": [name]}) for name in ("forward", "twice")]
    body.append(new_op("relu", {"X": ["forward"]}, {"Out": ["taken"]}))
    back = [new_op("relu_grad", {"Out": ["forward"], "Out@GRAD": ["inner"]}, {"X@GRAD": ["taken@GRAD"]})]
    aside = [new_op("relu", {"X": ["inner"]}, {"Out": ["inner"]})]
    return PaddleProgram(
        (
            PaddleBlock(0, -1, -1, first, tuple(ops)),
            PaddleBlock(1, 0, -1, tensors("forward", "twice"), tuple(body)),
            PaddleBlock(2, 0, 1, {}, tuple(back)),
            PaddleBlock(3, 0, -1, tensors("inner"), tuple(aside)),
        ),
        3_000_000,
    )


# In place: where, and where not.


def renamed(*lines: str, keep: Collection[str] = ()) -> list[tuple[str, ...]]:
    """What each operator of a straight program writes when all that may be in place is."""
    program = straight(*lines, f"loss = mean({lines[-1].partition(' ')[0]})")
    return [op.writes for op in rename_in_place(program, keep).blocks[0].ops]


def test_an_output_takes_over_a_dying_input() -> None:
    assert renamed("a = conv2d(x)", "b = relu(a)", "c = tanh(b)") == [("a",), ("a",), ("a",), ("loss",)]


@pytest.mark.parametrize(
    "lines",
    [
        ("a = conv2d(x)", "b = relu(a)", "c = concat(a, b)"),  # read later
        ("b = relu(x)",),  # fed
        ("a = conv2d(x)", "b = somebody(a)", "c = concat(b)"),  # an operator without facts
        ("a = somebody(x)", "b = relu(a)"),  # may be a view of x
        ("a = conv2d(x)", "b = matmul_v2(a)"),  # reads while it writes
        ("a = conv2d(x)", "b = mul(a)"),  # reads many elements for one, whatever an experiment found at one size
        ("a = conv2d(x)", "b = elementwise_mul(a, a)"),  # given twice
        ("b = conv2d(x)", "a = conv2d(b)", "b = relu(a)", "c = concat(b)"),  # was something else before
        ("a = conv2d(x)", "b = relu(a)", "a = conv2d(b)", "c = concat(a, b)"),  # is something else later
    ],
)
def test_nothing_is_taken_over(lines: tuple[str, ...]) -> None:
    program = straight(*lines)
    assert renamed(*lines)[:-1] == [op.writes for op in program.blocks[0].ops]


def test_what_is_kept_is_neither_renamed_nor_written_over() -> None:
    lines = ("a = conv2d(x)", "b = relu(a)", "c = tanh(b)")
    assert renamed(*lines, keep=["b"]) == [("a",), ("b",), ("c",), ("loss",)]


def test_other_sizes_and_types_are_not_taken_over() -> None:
    program = straight("a = conv2d(x)", "b = relu(a)", "loss = mean(b)")
    for other in (
        new_var("b", DType.F32, (8,)),
        new_var("b", DType.F64, (4,)),
        new_var("b", DType.F32, (4,), lod_level=1),
    ):
        block = replace(program.blocks[0], vars={**program.blocks[0].vars, "b": other})
        changed = replace(program, blocks=(block,))
        assert rename_in_place(changed) == changed


@pytest.mark.parametrize(("dims", "taken"), [((4,), True), ((3, 4), True), ((1, 4), False), ((-1, 4), False)])
def test_a_gradient_that_adds_up_rows_is_not_written_over(dims: tuple[int, ...], taken: bool) -> None:
    """Found in a transformer that adds one table of places to every sentence: its second loss was another."""
    inputs = {"X": ["x"], "Y": ["y"], "Out@GRAD": ["g"]}
    ops = (
        new_op("conv2d", {"X": ["x"]}, {"Out": ["g"]}),
        new_op("elementwise_add_grad", inputs, {"X@GRAD": ["x@GRAD"], "Y@GRAD": ["y@GRAD"]}),
        new_op("mean", {"X": ["x@GRAD"]}, {"Out": ["loss"]}),
        new_op("mean", {"X": ["y@GRAD"]}, {"Out": ["loss"]}),
    )
    vars = tensors("x", "g", "x@GRAD", dims=(3, 4)) | tensors("y", "y@GRAD", dims=dims) | tensors("loss")
    changed = rename_in_place(PaddleProgram((PaddleBlock(0, -1, -1, vars, ops),), 3_000_000))
    assert (changed.blocks[0].ops[1].writes != ("x@GRAD", "y@GRAD")) == taken


def test_an_open_shape_is_taken_over_only_where_the_operator_keeps_it() -> None:
    """A step of sequences has fewer rows than the one before: `shrink_rnn_memory` and its gradient."""
    for kind, taken in (("relu", True), ("reshape2", False)):
        program = straight("a = conv2d(x)", f"b = {kind}(a)", "loss = mean(b)")
        vars = {name: replace(var, dims=(-1, 4)) for name, var in program.blocks[0].vars.items()}
        program = replace(program, blocks=(replace(program.blocks[0], vars=vars),))
        assert (rename_in_place(program).blocks[0].ops[1].writes == ("a",)) == taken


def in_a_loop(*back: PaddleOp) -> PaddleProgram:
    """A trained loop that makes `a` from its state and `b` from `a`, with the operators of its gradient block."""
    outer = tensors("state", "go", "state@GRAD") | {"scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    ops = (
        runs("while", 1, {"X": ["state"], "Condition": ["go"]}, {"Out": ["state"], "StepScopes": ["scopes"]}),
        runs("while_grad", 2, {"X": ["state"], "StepScopes": ["scopes"]}, {"X@GRAD": ["state@GRAD"]}),
    )
    body = (
        new_op("conv2d", {"X": ["state"]}, {"Out": ["a"]}),
        new_op("relu", {"X": ["a"]}, {"Out": ["b"]}),
        new_op("assign", {"X": ["b"]}, {"Out": ["state"]}),
    )
    blocks = (
        PaddleBlock(0, -1, -1, outer, ops),
        PaddleBlock(1, 0, -1, tensors("a", "b"), body),
        PaddleBlock(2, 0, 1, tensors("b@GRAD", "a@GRAD"), back),
    )
    return PaddleProgram(blocks, 3_000_000)


def test_a_forward_value_is_renamed_in_the_gradient_block_too() -> None:
    back = new_op("relu_grad", {"Out": ["b"], "Out@GRAD": ["b@GRAD"]}, {"X@GRAD": ["a@GRAD"]})
    changed = rename_in_place(in_a_loop(new_op("assign", {"X": ["state@GRAD"]}, {"Out": ["b@GRAD"]}), back))
    assert changed.blocks[1].ops[1].writes == ("a",)
    assert changed.blocks[2].ops[1].inputs["Out"] == ("a",)
    assert "b" not in changed.blocks[1].vars


def test_a_forward_value_that_the_gradient_block_reads_is_not_written_over() -> None:
    program = in_a_loop(new_op("matmul_v2", {"X": ["a"], "Y": ["b"]}, {"Out": ["a@GRAD"]}))
    assert rename_in_place(program) == program


# Shape proxies.


def asked(var_dims: tuple[int, ...], *back: PaddleOp) -> list[tuple[str, ...]]:
    program = in_a_loop(*back)
    body = replace(program.blocks[1], vars=tensors("a", "b", dims=var_dims))
    gradient = replace(program.blocks[2], vars=tensors("a@GRAD", "b@GRAD", "c@GRAD", dims=var_dims))
    outer = replace(program.blocks[0], vars=program.blocks[0].vars | tensors("w") | tensors("rows", dims=(-1, 4)))
    program = replace(program, blocks=(outer, body, gradient))
    return [op.reads for op in use_shape_proxies(program).blocks[2].ops]


ADDED = new_op("elementwise_add_grad", {"X": ["a"], "Y": ["w"], "Out@GRAD": ["b@GRAD"]}, {"X@GRAD": ["a@GRAD"]})
WRITES = new_op("assign", {"X": ["state@GRAD"]}, {"Out": ["b@GRAD"]})


def test_a_shape_is_asked_of_what_the_operator_reads_anyway() -> None:
    assert asked((4,), WRITES, ADDED)[1] == ("b@GRAD", "w", "b@GRAD")
    assert asked((-1, 4), WRITES, ADDED)[1] == ("b@GRAD", "w", "b@GRAD")


def test_an_open_shape_is_not_asked_of_what_may_have_more_rows() -> None:
    rows = replace(ADDED, inputs={**ADDED.inputs, "Y": ("rows",)})
    assert asked((-1, 4), WRITES, rows)[1] == ("a", "rows", "b@GRAD")
    shrunk = new_op("shrink_rnn_memory_grad", {"X": ["a"], "Out@GRAD": ["b@GRAD"]}, {"X@GRAD": ["a@GRAD"]})
    assert asked((-1, 4), WRITES, shrunk)[1] == ("a", "b@GRAD")


def test_a_value_that_is_read_elsewhere_in_the_gradient_stays() -> None:
    reads = new_op("tanh_grad", {"Out": ["a"], "Out@GRAD": ["b@GRAD"]}, {"X@GRAD": ["c@GRAD"]})
    assert asked((4,), WRITES, reads, ADDED)[2] == ("a", "w", "b@GRAD")


def test_an_open_shape_is_not_asked_of_another_operators_value() -> None:
    gathered = new_op("gather_grad", {"X": ["a"], "Index": ["i"], "Out@GRAD": ["g"]}, {"X@GRAD": ["a@GRAD"]})
    assert asked((5,), WRITES, gathered, ADDED)[1] == ("b@GRAD", "i", "g")
    assert asked((-1, 5), WRITES, gathered, ADDED)[1] == ("a", "i", "g")


# Reordering.


def test_the_optimiser_runs_as_soon_as_its_gradient_is_complete() -> None:
    program = given("transformer")
    changed = run_updates_early(program)
    ops = changed.blocks[0].ops
    assert sorted(map(id, ops)) == sorted(map(id, program.blocks[0].ops))
    for at, op in enumerate(ops):
        if op.type == "adam":
            names = {*op.reads, *op.writes}
            assert ops[at - 1].type == "adam" or names & {*ops[at - 1].writes, *ops[at - 1].reads}
    assert conflicts(program) == conflicts(changed)


def conflicts(program: PaddleProgram) -> set[tuple[int, int]]:
    """Pairs of operators of which one writes what the other reads or writes, in their order."""
    ops = program.blocks[0].ops
    does = [effects_of(op) for op in ops]
    reads = [{*each.reads, *each.shapes, *each.adds} for each in does]
    writes = [{*each.writes, *each.adds} for each in does]
    return {
        (id(ops[i]), id(ops[j]))
        for j in range(len(ops))
        for i in range(j)
        if writes[i] & (reads[j] | writes[j]) or reads[i] & writes[j]
    }


def test_what_is_no_optimiser_stays_where_it_is() -> None:
    role = {"op_role": PaddleAttr("INT", 2)}
    late = new_op("scale", {"X": ["a"]}, {"Out": ["b"]}, role)
    first = new_op("relu", {"X": ["x"]}, {"Out": ["a"]})
    other = new_op("relu", {"X": ["y"]}, {"Out": ["c"]})
    block = PaddleBlock(0, -1, -1, tensors("a", "b", "c", "x", "y"), (first, other, late))
    program = PaddleProgram((block,), 3_000_000)
    assert run_updates_early(program) == program


# Updates awaited.


def test_what_comes_after_an_update_waits_for_it() -> None:
    """Each operator behind updates reads what `depend` handed on once these were done and their gradients, used up, had
    become views of it; no other operators were added.
    """
    before, added = run_updates_early(given("transformer")), ("share_data", "depend")
    ops = add_update_barriers(before, [LOSSES["transformer"]]).blocks[0].ops
    assert [op for op in ops if op.type not in added] == [*before.blocks[0].ops]
    updates: list[str] = []
    let_go: list[str] = []
    for op, following in pairwise(ops):
        if op.type == "adam":
            updates.append(op.outputs["ParamOut"][0])
            assert following.type in ("adam", *added) or following is ops[-1]
        elif op.type == "share_data":
            let_go.append(op.outputs["Out"][0])
            assert let_go[-1].removesuffix("@GRAD") in updates
            assert op.inputs["X"] == following.inputs["X"]
        elif op.type == "depend":
            assert op.inputs["Dep"] == tuple(updates)
            assert op.inputs["X"] == op.outputs["Out"]
            assert {*op.outputs["Out"]} & {*following.reads}
            updates.clear()
    assert let_go
    for name in let_go:
        *_, update, view = (op for op in ops if name in (*op.reads, *op.writes))
        assert (update.type, view.type) == ("adam", "share_data")


def test_before_depend_was_tried_nothing_waits() -> None:
    program = replace(run_updates_early(given("transformer")), version=2_005_000)
    assert add_update_barriers(program) == program
