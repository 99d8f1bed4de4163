"""What dies within a trip of a loop lies outside of it: what is moved, what is not, and that the checker sees why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sublet.base.tensor import DType
from sublet.integrations.paddle.checking import judge_equivalence
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import PaddleBlock, PaddleOp, PaddleProgram, new_op, new_var
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.memory import predict_memory
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.policies import apply_own_policy
from sublet.integrations.paddle.policies.inplace import rename_in_place
from sublet.integrations.paddle.policies.temporaries import move_temporaries_outside
from tests.integrations.paddle.given import BESIDE
from tests.integrations.paddle.mutants import with_block
from tests.integrations.paddle.written import op, runs, tensors

LOSS = "mean_2.tmp_0"


def translation() -> PaddleProgram:
    return decode_program((BESIDE / "mt.pb").read_bytes(), "mt")


def looped(*body: str) -> PaddleProgram:
    """A loop on `go` that computes `state`, within another one, and `loss` from it afterwards."""
    scopes = {"scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    told = {"X": ["state", "x"], "Condition": ["go"]}, {"Out": ["state", "go"], "StepScopes": ["scopes"]}
    outer = tensors("state", "x", "loss") | {"go": new_var("go", DType.BOOL, (1,))} | scopes
    ops = tuple(map(op, body))
    inside = dict.fromkeys(name for each in ops for name in (*each.reads, *each.writes) if name not in outer)
    return PaddleProgram(
        (
            PaddleBlock(0, -1, -1, outer, (op("state = relu(x)"), runs("while", 1, *told), op("loss = tanh(state)"))),
            PaddleBlock(
                1,
                0,
                -1,
                scopes | tensors("first"),
                (op("first = tanh(x)"), op("state = relu(first)"), runs("while", 2, *told)),
            ),
            PaddleBlock(2, 1, -1, tensors(*inside), ops),
        ),
        3_000_000,
    )


TWO = ("a = tanh(state)", "b = relu(a)", "c = tanh(b)", "state = tanh(c)")


def inside(program: PaddleProgram) -> set[str]:
    return {name for name, var in program.blocks[2].vars.items() if var.kind == "DENSE_TENSOR"}


def test_what_dies_within_a_trip_is_held_outside_in_few_names() -> None:
    program = looped(*TWO)
    changed = move_temporaries_outside(program)
    assert inside(program) == {"a", "b", "c"}
    assert not inside(changed)
    rooms = [name for name in changed.blocks[0].vars if name not in program.blocks[0].vars]
    assert rooms == ["sublet.loop1.0", "sublet.loop2.0", "sublet.loop2.1"]  # a and c are never there at a time
    assert [each.type for each in changed.blocks[0].ops] == ["relu", "while", *["share_data"] * 3, "assign", "tanh"]
    judgement = judge_equivalence(program, changed, infer_sizes(program), keep=["loss"])
    assert judgement.equal, judgement.findings
    assert judgement.trips == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (("b = tanh(a)", "a = tanh(b)", "state = relu(a)"), "a"),  # read before it is written
        (("a = somebody(state)", "state = relu(a)"), "a"),  # may be a view of what is read
        (("a = tanh(state)", "b = somebody(a)", "state = relu(b)"), "a"),
    ],
)
def test_what_stays_inside(body: tuple[str, ...], stays: str) -> None:
    assert stays in inside(move_temporaries_outside(looped(*body)))


@pytest.mark.parametrize(
    "change",
    [
        {"dims": (-1, 4)},
        {"lod_level": 1},
        {"persistable": True},
        {"dtype": DType.BOOL},  # no result of the loop to lie on
        {"kind": "TENSOR_ARRAY"},
    ],
)
def test_other_variables_stay_inside(change: dict[str, object]) -> None:
    program = looped(*TWO)
    vars = dict(program.blocks[2].vars)
    vars["a"] = replace(vars["a"], **change)  # type: ignore[arg-type]
    assert "a" in move_temporaries_outside(with_block(program, 2, vars=vars)).blocks[2].vars


def test_paddle_1_frees_at_once_and_a_loop_without_results_has_nothing_to_lie_on() -> None:
    old = replace(looped(*TWO), version=1_008_005)
    assert move_temporaries_outside(old) == old
    alone = looped(*TWO)
    alone = with_block(alone, 0, ops=alone.blocks[0].ops[:-1])
    assert move_temporaries_outside(alone) == alone


@pytest.mark.parametrize("reader", ["adam", "sum"])
@pytest.mark.parametrize(("taken", "given"), [(True, True), (True, False), (False, False)])
def test_a_gradient_that_a_loop_without_rounds_leaves_unwritten_is_nothing_to_lie_on(
    reader: str, taken: bool, given: bool
) -> None:
    """Found by running random programs in Paddle: `sum` does without it, and `share_data` fails. One that was given to
    the loop is there, if somebody made it; how often an optimiser runs nobody has to know.
    """
    slots = {"Param": ["w"], "Grad": ["x@GRAD"]} if reader == "adam" else {"X": ["x@GRAD", "y"]}
    outer = tensors("w", "x", "y", "x@GRAD", "loss") | {"scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    back = (op("a = tanh(x)"), op("x@GRAD = relu(a)"))
    more = {"Out@GRAD": ["x@GRAD"]} if taken else {}
    ops = (
        runs("while", 1, {"X": ["x"], "Condition": ["go"]}, {"Out": [], "StepScopes": ["scopes"]}),
        *([op("x@GRAD = tanh(y)")] if given else []),
        runs("while_grad", 2, {"X": ["x"], "StepScopes": ["scopes"], **more}, {"X@GRAD": ["x@GRAD"]}),
        new_op(reader, slots, {"Out": ["loss"]}),
    )
    blocks = (
        PaddleBlock(0, -1, -1, outer, ops),
        PaddleBlock(1, 0, -1, {}, ()),
        PaddleBlock(2, 0, 1, tensors("a", "x@GRAD"), back),
    )
    changed = move_temporaries_outside(PaddleProgram(blocks, 3_000_000))
    assert ("a" not in changed.blocks[2].vars) == given


def moved_up(program: PaddleProgram) -> PaddleProgram:
    """What makes a room free comes before the loop."""
    first, loop, release, *others = program.blocks[0].ops
    return with_block(program, 0, ops=(first, release, loop, *others))


def not_waiting(program: PaddleProgram) -> PaddleProgram:
    """What makes a room free may run before the loop is done: it reads none of its results."""
    first, loop, release, *others = program.blocks[0].ops
    return with_block(program, 0, ops=(first, loop, replace(release, inputs={"X": ("x",)}), *others))


def in_two_blocks(program: PaddleProgram) -> PaddleProgram:
    """A block has the room of another one, which runs within it."""
    ops = tuple(each.with_names({"sublet.loop1.0": "sublet.loop2.0"}) for each in program.blocks[1].ops)
    return with_block(program, 1, ops=ops)


def never_written(program: PaddleProgram) -> PaddleProgram:
    """A trip reads what the one before has left."""
    return with_block(program, 2, ops=program.blocks[2].ops[1:])


@pytest.mark.parametrize("wrong", [moved_up, not_waiting, in_two_blocks, never_written])
def test_the_checker_refuses_rooms_that_others_may_write(wrong: Callable[[PaddleProgram], PaddleProgram]) -> None:
    program = looped(*TWO)
    changed = wrong(move_temporaries_outside(program))
    assert not judge_equivalence(program, changed, infer_sizes(program), keep=["loss"]).equal


def test_nothing_dies_late_in_the_translation() -> None:
    """Whenever Paddle frees, so many bytes are held; one name after another is used again."""
    program = translation()
    changed = apply_own_policy(program, [LOSS])
    held = predict_memory(infer_sizes(changed), frozenset({ScopedVariable(0, LOSS)})).collected
    assert held.peak == held.lagging < 11_600_000
    for block in changed.blocks[1:]:
        gradients = {f"{name}@GRAD" for name in program.blocks[0].vars}
        mentioned = {
            name for other in changed.blocks if other.forward == block.index for o in other.ops for name in o.reads
        }
        float_temporaries = {
            name
            for name, var in block.vars.items()
            if var.dtype == DType.F32 and not var.persistable and name not in gradients | mentioned
        }
        assert not float_temporaries & {name for each in block.ops for name in each.writes}


# Gradients that Paddle finds by their names.


def summed(*back: PaddleOp, linked: tuple[str, ...] = ()) -> list[PaddleOp]:
    """The operators of the gradient of a loop over x, when all that may be in place is."""
    outer = tensors("x", "x@GRAD") | {"scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    owner = runs("while_grad", 2, {"X": ["x"], "StepScopes": ["scopes"]}, {"X@GRAD": ["x@GRAD"]})
    loop = runs("while", 1, {"X": ["x"], "Condition": ["go"]}, {"Out": [], "StepScopes": ["scopes"]})
    inner = tensors("x@GRAD", "p", "q")
    if linked:
        owner = replace(
            owner, attrs={**owner.attrs, "original_output_grad": new_op("", {}, {}, {"n": linked}).attrs["n"]}
        )
    blocks = (
        PaddleBlock(0, -1, -1, outer, (loop, owner)),
        PaddleBlock(1, 0, -1, {}, ()),
        PaddleBlock(2, 0, 1, inner, back),
    )
    return list(rename_in_place(PaddleProgram(blocks, 3_000_000)).blocks[2].ops)


def parts() -> tuple[PaddleOp, ...]:
    return (
        new_op("tanh", {"X": ["x"]}, {"Out": ["p"]}),
        new_op("relu", {"X": ["x"]}, {"Out": ["q"]}),
        new_op("sum", {"X": ["p", "q"]}, {"Out": ["x@GRAD"]}),
    )


def test_a_gradient_is_added_up_in_its_own_place() -> None:
    assert [each.writes for each in summed(*parts())] == [("x@GRAD",), ("q",), ("x@GRAD",)]
    assert summed(*parts())[2].reads == ("x@GRAD", "q")


def test_a_gradient_that_comes_in_by_its_name_is_not_written_early() -> None:
    assert summed(*parts(), linked=("x@GRAD",)) == list(parts())
    read_first = new_op("relu", {"X": ["x@GRAD"]}, {"Out": ["early"]})
    assert summed(*parts()[:2], read_first, parts()[2])[0].writes == ("p",)


def test_only_the_first_addend_may_be_the_sum() -> None:
    second = replace(parts()[2], inputs={"X": ("x", "q")})
    assert [each.writes for each in summed(*parts()[:2], second)] == [("p",), ("q",), ("x@GRAD",)]
