"""The checker of rewritten programs: it accepts what is equal, and refuses what computes something else in Paddle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from sublet.base.tensor import DType
from sublet.integrations.paddle.arena import to_arena_form
from sublet.integrations.paddle.checking import judge_equivalence
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import (
    EMPTY_NAME,
    TENSOR,
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.policies import apply_own_policy

from .given import BESIDE
from .mutants import renamed, with_block
from .written import op, runs, straight, tensors

LOSSES = {"cond": "mean_1.tmp_0", "mt": "mean_2.tmp_0"}


def given(name: str) -> PaddleProgram:
    path = BESIDE / f"{name}.pb"
    return decode_program(path.read_bytes(), str(path))


def rules(original: PaddleProgram, rewritten: PaddleProgram, loss: str) -> set[str]:
    return {
        finding.rule for finding in judge_equivalence(original, rewritten, infer_sizes(original), keep=[loss]).findings
    }


def changed(program: PaddleProgram, block: int, type_: str, change: Callable[[PaddleOp], PaddleOp]) -> PaddleProgram:
    """The first op of a type in a block, changed."""
    ops = list(program.blocks[block].ops)
    i = next(i for i, op in enumerate(ops) if op.type == type_)
    ops[i] = change(ops[i])
    return with_block(program, block, ops=tuple(ops))


@pytest.mark.parametrize("name", LOSSES)
def test_a_program_computes_what_it_computes(name: str) -> None:
    judgement = judge_equivalence(given(name), given(name), infer_sizes(given(name)), keep=[LOSSES[name]])
    assert (judgement.findings, judgement.every_way, judgement.trips) == ((), True, ())


def test_what_the_transpiler_of_2019_did_to_a_branch_is_refused() -> None:
    """It renames a gradient in the body that its owner finds by name only (input + @GRAD)."""
    cond = given("cond")
    name = "relu_0.tmp_0@GRAD"
    wrong = renamed(cond, name, "linear_2.tmp_1@GRAD", (3,))
    assert "differs" in rules(cond, wrong, LOSSES["cond"])


@pytest.mark.parametrize("name", LOSSES)
def test_a_program_without_one_of_its_ops_is_refused(name: str) -> None:
    program, rng = given(name), random.Random(7)
    for _ in range({"cond": 8, "mt": 2}[name]):
        block = rng.choice(program.blocks)
        at = rng.randrange(len(block.ops))
        assert rules(program, with_block(program, block.index, ops=block.ops[:at] + block.ops[at + 1 :]), LOSSES[name])


def test_an_op_may_write_over_what_it_reads_only_where_the_facts_say_so() -> None:
    cond = given("cond")
    assert not rules(cond, renamed(cond, "linear_4.tmp_1", "linear_4.tmp_0", (0,)), LOSSES["cond"])
    assert "destroyed" in rules(cond, renamed(cond, "linear_4.tmp_0", "_generated_var_4", (0,)), LOSSES["cond"])


def test_what_the_executor_has_freed_is_not_there() -> None:
    """The gradient of a loop finds of each round only what its own ops name; here it asks for another body variable."""
    mt = given("mt")
    wrong = changed(mt, 4, "sum", lambda op: replace(op, inputs={"X": ("matmul_v2_0.tmp_0", *op.inputs["X"][1:])}))
    assert rules(mt, wrong, LOSSES["mt"])
    kept = changed(mt, 4, "tanh_grad", lambda op: replace(op, inputs={**op.inputs, "Out": ("tmp_5",)}))
    assert rules(mt, kept, LOSSES["mt"])


def test_a_loop_saves_no_input_that_its_body_updates_in_one_op() -> None:
    """An op in the body that has an input of the loop among its inputs and outputs: the gradient finds the last one."""
    mt = given("mt")
    name = "fill_constant_5.tmp_0"
    body = mt.blocks[1]
    saved = new_op("assign", {"X": (name,)}, {"Out": (name,)})
    assert rules(mt, with_block(mt, 1, ops=(saved, *body.ops)), LOSSES["mt"])
    never_written = new_op("assign", {"X": ("transpose_0.tmp_0",)}, {"Out": ("transpose_0.tmp_0",)})
    told = changed(
        with_block(mt, 1, ops=(never_written, *body.ops)),
        0,
        "while",
        lambda op: replace(op, outputs={**op.outputs, "Out": (*op.outputs["Out"], "transpose_0.tmp_0")}),
    )
    assert not rules(mt, told, LOSSES["mt"])


def test_a_loop_has_an_input_once() -> None:
    """Paddle saves each input of a training loop under a name made from its own, and fails over the second."""
    mt = given("mt")
    twice = changed(
        mt, 0, "while", lambda op: replace(op, inputs={**op.inputs, "X": (*op.inputs["X"], op.inputs["X"][0])})
    )
    assert "twice" in rules(mt, twice, LOSSES["mt"])


def test_a_mask_is_what_it_was() -> None:
    """Whether a condition is cast or not, it chooses alike; Paddle takes no other type."""
    cond = given("cond")
    uncast = changed(cond, 0, "select_input", lambda op: replace(op, inputs={**op.inputs, "Mask": ("tmp_1",)}))
    assert "differs" in rules(cond, uncast, LOSSES["cond"])


def test_a_block_takes_nothing_from_around_it_that_its_owner_does_not_name() -> None:
    mt = given("mt")
    wrong = changed(
        mt,
        0,
        "while",
        lambda op: replace(op, inputs={**op.inputs, "X": tuple(n for n in op.inputs["X"] if "transpose" not in n)}),
    )
    assert "unnamed" in rules(mt, wrong, LOSSES["mt"])


def chain(views: Mapping[str, tuple[int, int]], arena: int = 0) -> PaddleProgram:
    """x -> relu -> relu -> relu -> y, of four floats each, with some of a, b and c views of one tensor."""
    names = ("x", "a", "b", "c", "y")
    variables = {name: new_var(name, DType.F32, (4,)) for name in names}
    ops = [new_op("tanh", {"X": (one,)}, {"Out": (other,)}) for one, other in pairwise(names)]
    first = []
    if arena:
        variables["arena"] = new_var("arena", DType.F32, (arena,))
        first.append(new_op("empty", {}, {"Out": ("arena",)}, {"shape": (arena,)}))
    for name, (begin, end) in views.items():
        spans = {"begin_idx": begin, "end_idx": end}
        first.append(new_op("view_slice", {"input": ("arena",)}, {"out": (name,)}, spans))
    return PaddleProgram((PaddleBlock(0, -1, -1, variables, (*first, *ops)),))


@pytest.mark.parametrize(
    ("views", "wrong"),
    [
        ({"a": (0, 4), "b": (4, 8), "c": (0, 4)}, set()),
        ({"a": (0, 4), "b": (0, 4), "c": (0, 4)}, set()),  # tanh may write over its input
        ({"a": (0, 4), "b": (2, 6), "c": (8, 12)}, {"destroyed", "differs"}),
        ({"a": (0, 4), "b": (4, 8), "c": (14, 18)}, {"view"}),
    ],
)
def test_places_in_an_arena(views: Mapping[str, tuple[int, int]], wrong: set[str]) -> None:
    original = chain({})
    assert wrong <= rules(original, chain(views, 16), "y")
    assert bool(wrong) == bool(rules(original, chain(views, 16), "y"))


def test_a_place_that_is_needed_later_is_not_written_over() -> None:
    def fork(views: Mapping[str, tuple[int, int]], arena: int = 0) -> PaddleProgram:
        program = chain(views, arena)
        last = new_op("elementwise_add", {"X": ("a",), "Y": ("y",)}, {"Out": ("z",)})
        block = program.blocks[0]
        variables: dict[str, PaddleVar] = {**block.vars, "z": new_var("z", DType.F32, (4,))}
        return with_block(program, 0, ops=(*block.ops, last), vars=variables)

    views = {"a": (0, 4), "b": (4, 8), "c": (8, 12)}
    assert not rules(fork({}), fork(views, 16), "z")
    assert "differs" in rules(fork({}), fork({**views, "c": (0, 4)}, 16), "z")


def test_what_nobody_has_written_yet_is_not_there() -> None:
    """Found by running mutants in Paddle: an element of an array that is read too early."""
    i = new_var("i", DType.I64, (1,))
    array = new_var("array", DType.F32, (4,), kind="TENSOR_ARRAY")
    vars = {name: new_var(name, DType.F32, (4,)) for name in ("x", "y", "loss")} | {"i": i, "array": array}
    number = new_op("fill_constant", {}, {"Out": ["i"]}, {"shape": (1,), "value": 0.0})
    write = new_op("write_to_array", {"X": ["x"], "I": ["i"]}, {"Out": ["array"]})
    read = new_op("read_from_array", {"X": ["array"], "I": ["i"]}, {"Out": ["y"]})
    end = new_op("mean", {"X": ["x"]}, {"Out": ["loss"]})
    program = PaddleProgram((PaddleBlock(0, -1, -1, vars, (number, write, read, end)),), 3_000_000)
    early = with_block(program, 0, ops=(number, read, write, end))
    assert rules(program, program, "loss") == set()
    assert "absent" in rules(program, early, "loss")


READERS = {
    "tanh": new_op("tanh", {"X": ["x"]}, {"Out": ["out"]}),
    "assign": new_op("assign", {"X": ["x"]}, {"Out": ["out"]}),
    "cast": new_op("cast", {"X": ["x"]}, {"Out": ["out"]}, {"in_dtype": 5, "out_dtype": 5}),
    "logical_not": new_op("logical_not", {"X": ["x"]}, {"Out": ["out"]}),
    "write_to_array": new_op("write_to_array", {"X": ["x"], "I": ["i"]}, {"Out": ["array"]}),
    "lod_tensor_to_array": new_op("lod_tensor_to_array", {"X": ["x"], "RankTable": ["w"]}, {"Out": ["array"]}),
    "array_to_lod_tensor": new_op("array_to_lod_tensor", {"X": ["x"], "RankTable": ["w"]}, {"Out": ["out"]}),
    "select_input": new_op("select_input", {"X": ["x", "x"], "Mask": ["i"]}, {"Out": ["out"]}),
    "select_output": new_op("select_output", {"X": ["x"], "Mask": ["i"]}, {"Out": ["out", "out"]}),
}
"""An op of each kind that handles bytes; nobody uses its result."""


def beside(*ops: PaddleOp) -> PaddleProgram:
    """A program with ops whose results nobody uses, in front of the one that writes `late`."""
    vars = {name: new_var(name, DType.F32, (4,)) for name in ("x", "w", "out", "late", "loss")}
    vars |= {"i": new_var("i", DType.I64, (1,)), "array": new_var("array", DType.F32, (4,), kind="TENSOR_ARRAY")}
    number = new_op("fill_constant", {}, {"Out": ["i"]}, {"shape": (1,), "value": 0.0})
    late = new_op("relu", {"X": ["w"]}, {"Out": ["late"]})
    end = new_op("mean", {"X": ["late"]}, {"Out": ["loss"]})
    return PaddleProgram((PaddleBlock(0, -1, -1, vars, (number, *ops, late, end)),), 3_000_000)


@pytest.mark.parametrize("kind", READERS)
def test_nobody_reads_what_is_not_written_yet(kind: str) -> None:
    """It fails in Paddle, also where nobody uses what comes of it; where not at once, then at the next op that does."""
    right = READERS[kind]
    early = right.with_names({"x": "late"})
    assert not rules(beside(right), beside(right), "loss")
    assert rules(beside(right), beside(early), "loss") == {"absent"}
    assert not rules(beside(early), beside(early), "loss")  # then Paddle can do without


def test_operands_are_of_types_that_the_original_has_there_also_in_a_block_that_is_never_run() -> None:
    """Found by running mutants in Paddle, which refuses them before it runs: a bool is compared with an integer."""
    go, scopes = new_var("go", DType.BOOL, (1,)), new_var("scopes", None, kind="STEP_SCOPES")
    vars = {"go": go, "scopes": scopes, **{name: new_var(name, DType.I64, (1,)) for name in ("i", "n", "loss")}}
    never = [
        new_op("fill_constant", {}, {"Out": [name]}, {"shape": (1,), "dtype": dtype, "value": value})
        for name, dtype, value in (("go", 0, 0.0), ("i", 3, 0.0), ("n", 3, 3.0))
    ]
    slots = {"Condition": ["go"], "X": ["i", "n"]}
    attributes = {"sub_block": PaddleAttr("BLOCK", 1), "is_test": True}
    loop = new_op("while", slots, {"Out": ["go", "i"], "StepScopes": ["scopes"]}, attributes)
    end = new_op("mean", {"X": ["n"]}, {"Out": ["loss"]})
    less = new_op("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["go"]})

    def program(compared: PaddleOp) -> PaddleProgram:
        return PaddleProgram(
            (PaddleBlock(0, -1, -1, vars, (*never, loop, end)), PaddleBlock(1, 0, -1, {}, (compared,))), 3_000_000
        )

    assert not rules(program(less), program(less), "loss")
    assert rules(program(less), program(less.with_names({"i": "go"})), "loss") == {"types"}


def test_a_mutant_that_never_ends_is_followed_as_far_as_the_original() -> None:
    """Found by the fuzz, where one took minutes."""
    vars: dict[str, PaddleVar] = {name: new_var(name, DType.I64, (1,)) for name in ("i", "n")}
    vars |= {"go": new_var("go", DType.BOOL, (1,)), "scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    fill = new_op("fill_constant", {}, {"Out": ["i"]}, {"shape": (1,), "value": 0.0})
    numbers = (fill, new_op("fill_constant", {}, {"Out": ["n"]}, {"shape": (1,), "value": 3.0}))
    less = new_op("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["go"]})
    on = new_op("increment", {"X": ["i"]}, {"Out": ["i"]}, {"step": 1.0})
    slots = {"Condition": ["go"], "X": ["i", "n"]}
    attributes = {"sub_block": PaddleAttr("BLOCK", 1), "is_test": True}
    loop = new_op("while", slots, {"Out": ["go", "i"], "StepScopes": ["scopes"]}, attributes)

    def program(*body: PaddleOp) -> PaddleProgram:
        return PaddleProgram(
            (PaddleBlock(0, -1, -1, vars, (*numbers, less, loop)), PaddleBlock(1, 0, -1, {}, body)), 3_000_000
        )

    assert not rules(program(on, less), program(on, less), "i")
    endless = rules(program(on, less), program(less), "i")
    assert "differs" in endless
    assert "rounds" not in endless


def test_the_gradient_of_a_branch_is_what_its_block_itself_holds() -> None:
    """Paddle looks for the gradient of an input in the block alone; where it finds none, it is zeros."""
    cond, name, zeros = given("cond"), "relu_0.tmp_0@GRAD", "relu_0.tmp_0@GRAD@RENAME@block0@0"
    own = dict(cond.blocks[3].vars)
    del own[name]  # block 0 has one of that name
    outside = with_block(cond, 3, vars=own)
    assert "differs" in rules(cond, outside, LOSSES["cond"])
    *others, last = cond.blocks[3].ops
    writes = {**last.outputs, "X@GRAD": ()}
    without = with_block(cond, 3, vars=own, ops=(*others, replace(last, outputs=writes)))

    def asking(shape_of: str) -> PaddleProgram:
        reader = new_op("elementwise_add_grad", {"Out@GRAD": [zeros], "X": [shape_of]}, {"X@GRAD": [name]})
        return changed(without, 0, "sum", lambda _: reader)

    assert not rules(asking("relu_0.tmp_0"), asking(zeros), LOSSES["cond"])


def test_the_gradients_of_a_loop_are_variables_of_its_block() -> None:
    """Paddle renames them in the scope of a round, and fails where they are around it."""
    mt = given("mt")
    op = next(op for op in mt.blocks[0].ops if op.type == "while_grad")
    block = mt.blocks[op.block_index() or 0]
    tensors = [name for name, var in block.vars.items() if var.kind == TENSOR]
    given_out = zip(op.inputs["X"], op.outputs["X@GRAD"], strict=True)
    name = next(f"{x}@GRAD" for x, gradient in given_out if gradient != EMPTY_NAME and f"{x}@GRAD" in tensors)
    own = {each: var for each, var in block.vars.items() if each != name}
    outer = {**mt.blocks[block.parent].vars, name: block.vars[name]}
    outside = with_block(with_block(mt, block.index, vars=own), block.parent, vars=outer)
    assert "absent" in rules(mt, outside, LOSSES["mt"])


def going_back(*back: str) -> PaddleProgram:
    """The gradient of a loop over `x` and `s`, given that of `s`, which is read once more when the loop is done."""
    outer = tensors("x", "y", "s", "s@GRAD", "x@GRAD", "out") | {"go": new_var("go", DType.BOOL, (1,))}
    outer |= {"scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    loop = {"X": ["x", "s"], "Condition": ["go"]}, {"Out": ["s"], "StepScopes": ["scopes"]}
    reverse = {"X": ["x", "s"], "Out@GRAD": ["s@GRAD"], "StepScopes": ["scopes"]}, {"X@GRAD": ["x@GRAD", EMPTY_NAME]}
    ops = (
        runs("while", 1, *loop),
        op("s@GRAD = tanh(y)"),
        runs("while_grad", 2, *reverse),
        op("out = sum(x@GRAD, s@GRAD)"),
    )
    body, inner = (op("s = relu(x)"),), tensors("x@GRAD", "a", "b")
    blocks = (
        PaddleBlock(0, -1, -1, outer, ops),
        PaddleBlock(1, 0, -1, {}, body),
        PaddleBlock(2, 0, 1, inner, tuple(map(op, back))),
    )
    return PaddleProgram(blocks, 3_000_000)


def test_the_gradient_that_a_loop_is_given_lies_where_its_rounds_have_it() -> None:
    """Found by the fuzz: a round writes over it, and the next one reads that."""
    over, beside = (
        going_back("a = relu(s@GRAD)", f"{name} = tanh(a)", "x@GRAD = sigmoid(s@GRAD)") for name in ("s@GRAD", "b")
    )
    for program in (over, beside):
        assert not rules(program, program, "out")
    assert "differs" in rules(over, beside, "out")
    assert "differs" in rules(beside, over, "out")


def untaken(*ops: PaddleOp) -> PaddleProgram:
    """A program with a branch that writes `short` and `long`, and with ops that may find nothing there."""
    vars: dict[str, PaddleVar] = {name: new_var(name, DType.F32, (8,)) for name in ("long", "far", "loss")}
    vars |= {
        name: new_var(name, DType.F32, (4,)) for name in ("x", "w", "short", "near", "other", "made", "more", "out")
    }
    vars |= {"go": new_var("go", DType.BOOL, (1,)), "scope": new_var("scope", None, kind="STEP_SCOPES")}
    vars |= {"i": new_var("i", DType.I64, (1,)), "array": new_var("array", DType.F32, (4,), kind="TENSOR_ARRAY")}
    written = [new_op("tanh", {"X": [x]}, {"Out": [out]}) for x, out in (("x", "short"), ("loss", "long"))]
    owner = {"Cond": ["go"], "Input": ["x", "loss"]}, {"Out": ["short", "long"], "Scope": ["scope"]}
    taken = new_op("conditional_block", *owner, {"sub_block": PaddleAttr("BLOCK", 1), "is_scalar_condition": True})
    return PaddleProgram(
        (PaddleBlock(0, -1, -1, vars, (taken, *ops)), PaddleBlock(1, 0, -1, {}, tuple(written))), 3_000_000
    )


FAR = new_op("assign", {"X": ["long"]}, {"Out": ["far"]})
NEAR = new_op("assign", {"X": ["short"]}, {"Out": ["near"]})
USED = tuple(
    new_op(kind, {"X": [x]}, {"Out": [out]})
    for kind, x, out in (("tanh", "near", "made"), ("relu", "made", "more"), ("sigmoid", "more", "out"))
)


def test_nothing_has_no_extents() -> None:
    """Found by the fuzz: what a branch that is not taken leaves unwritten goes by names of several sizes."""
    assert not rules(untaken(FAR, NEAR, *USED), untaken(NEAR, FAR, *USED), "out")


@pytest.mark.parametrize("first", ["near", "short"])
def test_nothing_gets_no_memory_by_being_written_over(first: str) -> None:
    """Found by running mutants in Paddle: `tanh` fails, but computes of what lies there where it is in place."""
    ops = (FAR, NEAR, *USED) if first == "near" else tuple(op.with_names({"near": "short"}) for op in USED)
    original, over = untaken(*ops), untaken(*(op.with_names({"made": first}) for op in ops))
    assert rules(original, over, "out") == {"absent"}
    assert not rules(over, over, "out")


def test_nothing_is_assigned_to_nothing_only() -> None:
    """Elsewhere memory stays there in Paddle, without extents: what reads it computes, and does not fail."""
    other = new_op("relu", {"X": ["x"]}, {"Out": ["other"]})
    original, over = (
        untaken(other, *(op.with_names({"near": near}) for op in (NEAR, *USED))) for near in ("near", "other")
    )
    assert rules(original, over, "out") == {"absent"}
    assert not rules(over, over, "out")


CHOSEN = {
    "select_input": (new_op("select_input", {"X": ["short", "short"], "Mask": ["go"]}, {"Out": ["near"]}),),
    "select_output": (new_op("select_output", {"X": ["short"], "Mask": ["go"]}, {"Out": ["near", "near"]}),),
    "write_to_array": (
        new_op("fill_constant", {}, {"Out": ["i"]}, {"shape": (1,), "value": 0.0}),
        new_op("write_to_array", {"X": ["near"], "I": ["i"]}, {"Out": ["array"]}),
        new_op("write_to_array", {"X": ["short"], "I": ["i"]}, {"Out": ["array"]}),
        new_op("read_from_array", {"X": ["array"], "I": ["i"]}, {"Out": ["near"]}),
    ),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_nothing_that_is_chosen_or_put_into_an_array_leaves_what_is_there(kind: str) -> None:
    """Shown in Paddle 2.6.2 and 3.0.0: the branch is not taken, and what is read is what was written before."""
    before = new_op("relu", {"X": ["x"]}, {"Out": ["near"]})
    program = untaken(before, *CHOSEN[kind], *USED)
    another = untaken(before.with_names({"x": "w"}), *CHOSEN[kind], *USED)
    assert not rules(program, program, "out")
    assert "differs" in rules(program, another, "out")


def test_what_may_hold_nothing_keeps_a_name_and_memory_of_its_own() -> None:
    program = untaken(FAR, NEAR, *USED)
    by_name, placed = apply_own_policy(program, ["out"]), to_arena_form(program, infer_sizes(program), ["out"])
    assert by_name.blocks[0].ops[1:] == (FAR, NEAR, *(op.with_names({"more": "made"}) for op in USED))
    assert {place.name for place in placed.places} == {"made", "more"}
    assert not rules(program, by_name, "out") | rules(program, placed.program, "out")


def test_a_copy_on_what_it_copies_is_that_too() -> None:
    """Found by the fuzz of arena forms: a reshaped tensor is read again by the name it had before."""
    vars = {name: new_var(name, DType.F32, (4,)) for name in ("x", "made", "copy", "out")}
    vars |= {"mean": new_var("mean", DType.F32, (1,)), "shape": new_var("shape", DType.F32, (0, 4))}
    reshaped = new_op("reshape2", {"X": ["made"]}, {"Out": ["copy"], "XShape": ["shape"]}, {"shape": (4,)})
    ops = (
        new_op("tanh", {"X": ["x"]}, {"Out": ["made"]}),
        reshaped,
        new_op("mean", {"X": ["copy"]}, {"Out": ["mean"]}),
        new_op("elementwise_add", {"X": ["made"], "Y": ["mean"]}, {"Out": ["out"]}),
    )
    program = PaddleProgram((PaddleBlock(0, -1, -1, vars, ops),), 3_000_000)
    form = to_arena_form(program, infer_sizes(program), ["out"])
    places = {place.name: at for place, at in form.places.items()}
    assert places["made"] == places["copy"]
    assert not rules(program, form.program, "out")
    for kind in ("relu", "reduce_sum"):  # a sum over one element makes 0.0 of -0.0
        computed = new_op(kind, {"X": ["made"]}, {"Out": ["copy"]})
        wrong = (
            with_block(each, 0, ops=tuple(computed if op.type == "reshape2" else op for op in each.blocks[0].ops))
            for each in (program, form.program)
        )
        assert rules(*wrong, "out") == {"destroyed", "differs", "new"}


def viewed(*ops: PaddleOp) -> PaddleProgram:
    """A program with `all`, of which `long` is a view as a whole, and `short` its first half."""
    vars = {name: new_var(name, DType.F32, (8,)) for name in ("x", "all", "long")}
    vars |= {"short": new_var("short", DType.F32, (4,)), "out": new_var("out", DType.F32, (1,))}
    begin = [new_op("empty", {}, {"Out": ["all"]}, {"shape": PaddleAttr("LONGS", (8,))})]
    for name, end in (("long", 8), ("short", 4)):
        begin += [new_op("view_slice", {"input": ["all"]}, {"out": [name]}, {"begin_idx": 0, "end_idx": end})]
    return PaddleProgram((PaddleBlock(0, -1, -1, vars, (*begin, *ops)),), 3_000_000)


@pytest.mark.parametrize("name", ["short", "all"])
def test_a_view_is_what_was_written_by_its_name(name: str) -> None:
    """It has extents of its own, and as many bytes as these."""
    made = new_op("relu", {"X": ["x"]}, {"Out": ["long"]})
    right, wrong = (viewed(made, new_op("mean", {"X": [each]}, {"Out": ["out"]})) for each in ("long", name))
    assert not rules(right, right, "out")
    assert "destroyed" in rules(right, wrong, "out")


def test_nothing_leaves_an_element_that_was_taken_apart() -> None:
    def program(read: str) -> PaddleProgram:
        vars = {name: new_var(name, DType.F32, (4,)) for name in ("x", "w", "late", "out")}
        vars |= {name: new_var(name, DType.F32, (4,), kind="TENSOR_ARRAY") for name in ("xs", "ws")}
        vars |= {"i": new_var("i", DType.I64, (1,)), "table": new_var("table", None, kind="LOD_RANK_TABLE")}
        ops = [new_op("fill_constant", {}, {"Out": ["i"]}, {"shape": (1,), "value": 0.0})]
        for tensor, array in (("x", "xs"), ("w", "ws")):
            ops += [new_op("lod_tensor_to_array", {"X": [tensor], "RankTable": ["table"]}, {"Out": [array]})]
            ops += [new_op("write_to_array", {"X": ["late"], "I": ["i"]}, {"Out": [array]})]
        ops += [new_op("read_from_array", {"X": [read], "I": ["i"]}, {"Out": ["out"]})]
        ops += [new_op("relu", {"X": ["x"]}, {"Out": ["late"]})]
        return PaddleProgram((PaddleBlock(0, -1, -1, vars, tuple(ops)),), 3_000_000)

    assert not rules(program("xs"), program("xs"), "out")
    assert "differs" in rules(program("xs"), program("ws"), "out")


def test_what_one_op_can_do_without_another_of_its_type_cannot() -> None:
    """An original in which one op finds nothing says nothing about other ops of that type, or that slot."""
    without = new_op("sum", {"X": ["x", "late"]}, {"Out": ["out"]})
    other = new_op("sum", {"X": ["w", "x"]}, {"Out": ["out"]})
    assert rules(beside(without, other), beside(without, other.with_names({"x": "late"})), "loss") == {"absent"}


def test_an_element_that_holds_nothing_is_nothing() -> None:
    """Found by running mutants in Paddle: what was read too early, and put into an array, is not there either."""
    write, read = READERS["write_to_array"], new_op("read_from_array", {"X": ["array"], "I": ["i"]}, {"Out": ["out"]})
    use = new_op("tanh", {"X": ["out"]}, {"Out": ["out"]})
    early = beside(write.with_names({"x": "late"}), read, use)
    wrong = judge_equivalence(beside(write, read, use), early, infer_sizes(early), keep=["loss"]).findings
    found = {finding.where.rpartition("(")[2] for finding in wrong if finding.rule == "absent"}
    assert found == {"write_to_array)", "read_from_array)", "tanh)"}


@pytest.mark.parametrize("kind", sorted(READERS.keys() - {"assign", "select_input", "select_output"}))
def test_an_op_is_applied_to_nothing_new(kind: str) -> None:
    """Found by running mutants in Paddle: it may refuse what it was never given, a bool beside an integer, say."""
    right = READERS[kind]
    assert rules(beside(right), beside(right.with_names({"x": "w"})), "loss") == {"new"}
    assert not rules(beside(right, right.with_names({"x": "w"})), beside(right.with_names({"x": "w"})), "loss")


def test_an_input_of_a_loop_is_there_before_it() -> None:
    """Found in the same way, in a loop that makes no round."""
    mt = given("mt")
    at = next(i for i, op in enumerate(mt.blocks[0].ops) if op.type == "while")
    name = "transpose_0.tmp_0"
    writer = next(i for i, op in enumerate(mt.blocks[0].ops) if name in op.writes)
    ops = list(mt.blocks[0].ops)
    ops.insert(at, ops.pop(writer))
    assert "absent" in rules(mt, with_block(mt, 0, ops=tuple(ops)), LOSSES["mt"])


@pytest.mark.parametrize(
    ("depend", "wrong"),
    [
        (({"X": ["a"], "Dep": ["x"]}, {"Out": ["a"]}), set()),
        (({"X": ["b"], "Dep": ["x"]}, {"Out": ["a"]}), {"new"}),  # hands on another value
        (({"X": ["a"], "Dep": ["b"]}, {"Out": ["a"]}), {"absent"}),  # waits for what comes later
    ],
)
def test_what_waits_goes_on_under_its_own_name(
    depend: tuple[Mapping[str, list[str]], Mapping[str, list[str]]], wrong: set[str]
) -> None:
    program = straight("a = relu(x)", "c = tanh(a)", "b = tanh(x)", "d = relu(b)")
    first, *others = program.blocks[0].ops
    waiting = with_block(program, 0, ops=(first, new_op("depend", *depend), *others))
    assert wrong <= rules(program, waiting, "c")
    assert bool(wrong) == bool(rules(program, waiting, "c"))


@pytest.mark.parametrize(
    ("at", "x", "wrong"),
    [
        (3, "a", set()),
        (1, "a", {"destroyed", "differs", "new"}),  # b is written where a lies
        (3, "w", {"new"}),  # what the next run writes to b might lie where w does
    ],
)
def test_a_view_is_the_same_bytes(at: int, x: str, wrong: set[str]) -> None:
    program = straight("a = relu(x)", "b = tanh(x)", "d = square(b)", "c = sigmoid(a)", "w = exp(d)", persistable=["w"])
    ops = list(program.blocks[0].ops)
    ops.insert(at, new_op("share_data", {"X": [x]}, {"Out": ["b"]}))
    assert rules(program, with_block(program, 0, ops=tuple(ops)), "c") == wrong


def test_a_view_is_of_bytes() -> None:
    """Found by running the translation in Paddle, which fails."""
    program = straight("a = relu(x)", "b = tanh(a)", "c = sigmoid(x)", "d = exp(c)")
    slots = {"X": ["x"]}, {"Out": ["a"], "XShape": ["c"]}
    reshaped = new_op("reshape2", *slots, {"shape": PaddleAttr("INTS", (4,))})
    program = with_block(program, 0, ops=(reshaped, *program.blocks[0].ops[1:2]))
    viewed = (*program.blocks[0].ops, new_op("share_data", {"X": ["c"]}, {"Out": ["a"]}))
    assert rules(program, with_block(program, 0, ops=viewed), "b") == {"new"}


def test_a_condition_cannot_be_made_to_wait() -> None:
    """Paddle has no kernel for it from 3.0 on."""
    program, bits = straight("a = logical_not(x)", "b = logical_not(a)"), {"dtype": DType.BOOL}
    vars = {name: replace(var, **bits) for name, var in program.blocks[0].vars.items()}
    program = with_block(program, 0, vars=vars)
    first, last = program.blocks[0].ops
    waiting = with_block(program, 0, ops=(first, new_op("depend", {"X": ["a"], "Dep": ["x"]}, {"Out": ["a"]}), last))
    assert rules(program, waiting, "b") == {"types"}
