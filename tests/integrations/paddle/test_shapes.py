"""Shape rules give what Paddle's own inference wrote into the programs, from the feeds and weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.base.errors import ModelError
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import (
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)
from sublet.integrations.paddle.operators.shapes import infer_sizes
from tests.integrations.paddle.given import program_files

OUTER = frozenset({"feed", "fetch"})


def opened(program: PaddleProgram) -> PaddleProgram:
    """The program with every extent open of what an operator computes."""
    computed = {
        (program.declaring_block(block.index, name), name)
        for block in program.blocks
        for op in block.ops
        if op.type not in OUTER
        for name in op.writes
    }

    def open_(block: int, var: PaddleVar) -> PaddleVar:
        if var.persistable or (block, var.name) not in computed:
            return var
        return replace(var, dims=tuple(-1 for _ in var.dims))

    blocks = [
        replace(block, vars={name: open_(block.index, var) for name, var in block.vars.items()})
        for block in program.blocks
    ]
    return replace(program, blocks=tuple(blocks))


STATIC = [path for path in program_files() if not path.name.startswith("book")]


@pytest.mark.parametrize("path", STATIC, ids=lambda path: path.name)
def test_rules_give_what_paddle_inferred(path: Path) -> None:
    program = decode_program(path.read_bytes(), path.name)
    sizes = infer_sizes(opened(program), where=path.name)
    for block in program.blocks:
        for name, var in block.vars.items():
            if -1 not in var.dims and name != "undefined_var_0":
                assert sizes.dims(block.index, name) == var.dims, name


def program(ops: list[PaddleOp], *variables: PaddleVar) -> PaddleProgram:
    """A program of one block."""
    return PaddleProgram((PaddleBlock(0, -1, -1, {var.name: var for var in variables}, tuple(ops)),))


def tensors(**dims: tuple[int, ...]) -> Mapping[str, PaddleVar]:
    return {name: new_var(name, DType.F32, extents) for name, extents in dims.items()}


def test_what_is_open_is_told_by_name_with_its_cause() -> None:
    ops = [new_op("relu", {"X": ["x"]}, {"Out": ["y"]}), new_op("tanh", {"X": ["y"]}, {"Out": ["z"]})]
    net = program(ops, *tensors(x=(-1, 4), y=(-1, 4), z=(-1, 4)).values())
    with pytest.raises(ModelError, match=r"'x' in block 0 are \[\?,4\] \(open\).*leaves 'z'.*--shape x=1,4"):
        infer_sizes(net).nbytes(0, "z")
    assert infer_sizes(net, {"x": (3, 4)}).nbytes(0, "z") == 48
    assert infer_sizes(net, dims={"x.0": 5}).shape(0, "z") == (5, 4)


def test_an_operator_without_a_rule_is_named_and_its_shape_can_be_told() -> None:
    ops = [new_op("own_thing", {"X": ["x"]}, {"Out": ["y"]}), new_op("tanh", {"X": ["y"]}, {"Out": ["z"]})]
    net = program(ops, *tensors(x=(2, 4), y=(-1, 4), z=(-1, 4)).values())
    with pytest.raises(ModelError, match="operator own_thing has no shape rule"):
        infer_sizes(net).nbytes(0, "z")
    assert infer_sizes(net, {"y": (7, 4)}).nbytes(0, "z") == 7 * 16


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        ({"w": (1,)}, {}, "no such variable.*x"),
        ({"x": (1, 5)}, {}, r"declared as \[\?,4\]"),
        ({"x": (1,)}, {}, r"declared as \[\?,4\]"),
        ({"x": (-1, 4)}, {}, "below 0"),
        ({}, {"batch": 3}, "names no extent: write x.0"),
        ({}, {"x.7": 3}, "names no extent"),
        ({"x": (3, 4), "y": (2, 4)}, {}, r"'y' is inferred as \[3,4\]"),
    ],
)
def test_what_is_told_must_fit(shapes: dict[str, tuple[int, ...]], dims: dict[str, int], message: str) -> None:
    net = program([new_op("relu", {"X": ["x"]}, {"Out": ["y"]})], *tensors(x=(-1, 4), y=(-1, 4)).values())
    with pytest.raises(ModelError, match=message):
        infer_sizes(net, shapes, dims)


def test_operands_that_do_not_fit_are_named() -> None:
    op = new_op("elementwise_add", {"X": ["x"], "Y": ["y"]}, {"Out": ["z"]}, {"axis": -1})
    net = program([op], *tensors(x=(2, 4), y=(2, 3), z=(2, 4)).values())
    with pytest.raises(ModelError, match=r"operator 0 \(elementwise_add, which writes 'z'\).*\[2,4\] and \[2,3\]"):
        infer_sizes(net)


def test_a_name_that_is_assigned_again_has_the_bytes_of_the_largest() -> None:
    ops = [
        new_op("concat", {"X": ["x", "x"]}, {"Out": ["y"]}, {"axis": 0}),
        new_op("relu", {"X": ["y"]}, {"Out": ["z"]}),
        new_op("relu", {"X": ["x"]}, {"Out": ["y"]}),
    ]
    sizes = infer_sizes(program(ops, *tensors(x=(2, 4), y=(-1, 4), z=(-1, 4)).values()))
    assert sizes.nbytes(0, "y") == sizes.nbytes(0, "z") == 64
    assert sizes.dims(0, "y") == (None, 4)


def test_what_grows_from_round_to_round_is_open() -> None:
    """And what is carried as it is stays known."""
    variables = {**tensors(x=(2, 4), y=(-1, 4), z=(-1, 4)), "go": new_var("go", DType.BOOL, (1,))}
    body = PaddleBlock(
        1,
        0,
        -1,
        tensors(t=(-1, 4)),
        (
            new_op("concat", {"X": ["y", "x"]}, {"Out": ["t"]}, {"axis": 0}),
            new_op("assign", {"X": ["t"]}, {"Out": ["y"]}),
            new_op("assign", {"X": ["x"]}, {"Out": ["z"]}),
        ),
    )
    ops = (
        new_op("assign", {"X": ["x"]}, {"Out": ["y"]}),
        new_op(
            "while", {"Condition": ["go"], "X": ["x", "y"]}, {"Out": ["y", "z"]}, {"sub_block": PaddleAttr("BLOCK", 1)}
        ),
    )
    sizes = infer_sizes(PaddleProgram((PaddleBlock(0, -1, -1, variables, ops), body)))
    assert sizes.dims(0, "y") == (None, 4)
    assert sizes.dims(0, "z") == (2, 4)


def test_a_gradient_that_a_body_only_names_has_the_extents_of_what_it_is_the_gradient_of() -> None:
    """Found by the fuzz: Paddle declares it there again, without a type; no extents are not those of a number."""
    body = {"s@GRAD": new_var("s@GRAD", None), "a": new_var("a", DType.F32, (4, 8))}
    back = new_op("while_grad", {"X": ["s"]}, {"X@GRAD": ["s@GRAD"]}, {"sub_block": PaddleAttr("BLOCK", 1)})
    inner = PaddleBlock(1, 0, -1, body, (new_op("assign", {"X": ["s@GRAD"]}, {"Out": ["a"]}),))
    sizes = infer_sizes(
        PaddleProgram((PaddleBlock(0, -1, -1, {"s": new_var("s", DType.F32, (4, 8))}, (back,)), inner), 3_000_000)
    )
    assert sizes.shape(1, "s@GRAD") == sizes.shape(1, "a") == (4, 8)


def test_sequences_of_the_book_program() -> None:
    """Words of all sequences lie one after another; a step has at most one row of each sequence."""
    files = [path for path in program_files() if path.name.startswith("book")]
    for path in files:
        words = {"src_word_id": (50, 1), "target_language_word": (40, 1), "target_language_next_word": (40, 1)}
        sizes = infer_sizes(decode_program(path.read_bytes(), path.name), words, {"sequences": 4})
        assert sizes.shape(0, "lstm_0.tmp_2") == (50, 128)
        assert sizes.shape(1, "fc_2.tmp_2") == sizes.shape(2, "fc_2.tmp_2@GRAD") == (4, 3000)
        assert sizes.shape(0, "array_to_lod_tensor_0.tmp_0@GRAD") == (40, 3000)
        assert sizes.shape(0, "vemb@GRAD") == (90, 16)


def test_a_loop_takes_bounded_time() -> None:
    """Each round changes one more of many variables, the last one first."""
    count = 400
    variables = {"go": new_var("go", DType.BOOL, (1,)), **tensors(x=(1, 1), **{f"y{i}": (-1, 1) for i in range(count)})}
    first = [new_op("assign", {"X": ["x"]}, {"Out": [f"y{i}"]}) for i in range(count)]
    body = [new_op("assign", {"X": [f"y{i + 1}"]}, {"Out": [f"y{i}"]}) for i in range(count - 1)]
    body.append(new_op("concat", {"X": [f"y{count - 1}", "y0"]}, {"Out": [f"y{count - 1}"]}, {"axis": 0}))
    loop = new_op("while", {"Condition": ["go"]}, {"Out": []}, {"sub_block": PaddleAttr("BLOCK", 1)})
    net = PaddleProgram((PaddleBlock(0, -1, -1, variables, (*first, loop)), PaddleBlock(1, 0, -1, {}, tuple(body))))
    with pytest.raises(ModelError, match="too many passes"):
        infer_sizes(net)
