"""Programs come out of the codec as they went in, but for what was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sublet.base.errors import ModelError
from sublet.base.tensor import DType
from sublet.integrations.paddle.format import wire
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleAttr, PaddleBlock, PaddleProgram, new_op, new_var
from tests.integrations.onnx.damage import judge_many
from tests.integrations.paddle.given import BESIDE, program_files
from tests.integrations.paddle.hostile import PROGRAMS


def read(name: str) -> tuple[bytes, PaddleProgram]:
    raw = (BESIDE / name).read_bytes()
    return raw, decode_program(raw, name)


def anew(program: PaddleProgram) -> PaddleProgram:
    """The same program as if no file had it."""
    blocks = []
    for block in program.blocks:
        ops = [
            replace(op, origin=None, attrs={name: replace(attr, origin=None) for name, attr in op.attrs.items()})
            for op in block.ops
        ]
        variables = {name: replace(var, origin=None) for name, var in block.vars.items()}
        blocks.append(replace(block, vars=variables, ops=tuple(ops), origin=None))
    return replace(program, blocks=tuple(blocks), origin=None)


@pytest.mark.parametrize("path", program_files(), ids=lambda path: path.name)
def test_every_program_comes_out_byte_for_byte(path: Path) -> None:
    raw = path.read_bytes()
    program = decode_program(raw, path.name)
    assert encode_program(program) == raw
    assert decode_program(encode_program(anew(program)), path.name) == program


def changed(program: PaddleProgram, position: int, **changes: object) -> PaddleProgram:
    """The program with one operator of block 0 changed."""
    block = program.blocks[0]
    ops = tuple(replace(op, **changes) if i == position else op for i, op in enumerate(block.ops))  # type: ignore[arg-type]
    return replace(program, blocks=(replace(block, ops=ops), *program.blocks[1:]))


def different(a: bytes, b: bytes) -> int:
    """How many bytes lie between what two texts have in common at front and back."""
    front = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    back = next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), 0)
    return max(len(a), len(b)) - front - back


def test_what_is_changed_comes_through_and_the_rest_stays() -> None:
    raw, program = read("loopnet0.pdmodel")
    named = changed(program, 5, outputs={"Out": ("elsewhere_var_0",)})
    out = encode_program(named)
    assert decode_program(out, "x") == named
    assert 0 < different(raw, out) < 16
    op = program.blocks[0].ops[1]
    attrs = {**op.attrs, "value": replace(op.attrs["value"], value=2.5), "own": PaddleAttr("STRINGS", ("a", "b"))}
    assert decode_program(encode_program(changed(program, 1, attrs=attrs)), "x").blocks[0].ops[1].attrs == attrs


def test_each_field_of_a_variable_comes_through() -> None:
    _, program = read("loopnet0.pdmodel")
    block = program.blocks[0]
    for changes in (
        {"name": "y"}, {"dims": (7, -1)}, {"dtype": DType.BF16}, {"lod_level": 2}, {"persistable": True},
        {"parameter": True}, {"stop_gradient": True}, {"kind": "TENSOR_ARRAY"}, {"kind": "SELECTED_ROWS"},
    ):  # fmt: skip
        for old in ("x", "gru_cell_0.b_0"):
            var = replace(block.vars[old], **changes)  # type: ignore[arg-type]
            vars_ = {(var.name if name == old else name): (var if name == old else v) for name, v in block.vars.items()}
            again = decode_program(
                encode_program(replace(program, blocks=(replace(block, vars=vars_), *program.blocks[1:]))), "x"
            )
            assert again.blocks[0].vars[var.name] == var


def test_records_made_anew_are_written() -> None:
    values: dict[str, PaddleAttr] = {
        "i": PaddleAttr("INT", -3), "f": PaddleAttr("FLOAT", 0.5), "s": PaddleAttr("STRING", "\udcff raw"),
        "is": PaddleAttr("INTS", (1, -2)), "fs": PaddleAttr("FLOATS", (0.5, -1.0)),
        "ss": PaddleAttr("STRINGS", ("a", "")), "b": PaddleAttr("BOOLEAN", True),
        "bs": PaddleAttr("BOOLEANS", (True, False)), "l": PaddleAttr("LONG", -(1 << 62)),
        "ls": PaddleAttr("LONGS", (1 << 40,)), "ds": PaddleAttr("FLOAT64S", (1e300,)), "v": PaddleAttr("VAR", "x"),
        "vs": PaddleAttr("VARS", ("x", "y")), "d": PaddleAttr("FLOAT64", -1e300), "c": PaddleAttr("SCALAR", 1 + 2j),
        "cs": PaddleAttr("SCALARS", (True, 2, 0.5)), "inner": PaddleAttr("BLOCK", 1),
        "inners": PaddleAttr("BLOCKS", (1,)),
    }  # fmt: skip
    op = new_op("own", {"X": ["x", "y"]}, {"Out": []}, values)
    variables = [new_var("x", DType.F32, (2, -1), persistable=True), new_var("s", None, kind="STEP_SCOPES")]
    blocks = (PaddleBlock(0, -1, -1, {v.name: v for v in variables}, (op,)), PaddleBlock(1, 0, -1, {}, ()))
    program = PaddleProgram(blocks, 3_000_000)
    assert decode_program(encode_program(program), "x") == program


def test_plain_values_become_the_plainest_attributes() -> None:
    plain = {"a": 1, "b": True, "c": 0.5, "d": "t", "e": [1, 2], "f": (True,), "g": ["s"], "h": [0.5], "i": []}
    op = new_op("own", {}, {}, plain)
    kinds = ["INT", "BOOLEAN", "FLOAT", "STRING", "INTS", "BOOLEANS", "STRINGS", "FLOATS", "INTS"]
    assert [attr.kind for attr in op.attrs.values()] == kinds
    with pytest.raises(ModelError, match="Attr"):
        new_op("own", {}, {}, {"a": object()})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        (PaddleAttr("INT", "text"), "cannot hold"),
        (PaddleAttr("FLOAT", 1e300), "cannot hold"),
        (PaddleAttr("TENSOR", 1), "does not know"),
    ],
)
def test_attributes_that_cannot_be_written_are_named(attr: PaddleAttr, message: str) -> None:
    program = PaddleProgram((PaddleBlock(0, -1, -1, {}, (new_op("own", {}, {}, {"a": attr}),)),))
    with pytest.raises(ModelError, match=f"attribute 'a'.*{message}"):
        encode_program(program)


def test_unknown_fields_stay_where_they_are() -> None:
    raw, _ = read("loopnet0.pdmodel")
    more = wire.encode_texts(99, ["later"]) + raw + wire.encode_integers(98, [7])
    program = decode_program(more, "x")
    assert encode_program(program) == more
    newer = encode_program(replace(program, version=3_003_001))
    assert newer.startswith(wire.encode_texts(99, ["later"]))
    assert newer.endswith(wire.encode_integers(98, [7]))
    assert decode_program(newer, "x").version == 3_003_001


def nested(depth: int) -> PaddleProgram:
    """Loops in loops."""
    ops = [new_op("while", {}, {}, {"sub_block": PaddleAttr("BLOCK", i + 1)}) for i in range(depth)]
    blocks = [PaddleBlock(i, i - 1, -1, {}, tuple(ops[i : i + 1])) for i in range(depth + 1)]
    return PaddleProgram(tuple(blocks))


def owned_twice() -> PaddleProgram:
    op = new_op("while", {}, {}, {"sub_block": PaddleAttr("BLOCK", 1)})
    return PaddleProgram((PaddleBlock(0, -1, -1, {}, (op, op)), PaddleBlock(1, 0, -1, {}, ())))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "without blocks"),
        (b"\x0a", "a number has no last byte"),
        (b"\x0a\x7f", "127 bytes, but only 0"),
        (b"\x0a\x02\x08\x00", "field 2 of a message of 2 bytes is missing"),
        (b"\x08\x01", "field 1 is a number, not a string or message"),
        (b"\x0b", "no field begins with 11"),
        (b"\xff" * 11, "a number has no last byte"),
        (
            wire.encode_messages(1, [wire.encode_integers(1, [0]) + wire.encode_integers(2, [7])]),
            "cannot lie in block 7",
        ),
        (
            wire.encode_messages(1, [wire.encode_integers(1, [3]) + wire.encode_integers(2, [-1])]),
            "has the index 3",
        ),
        (encode_program(nested(65)), "nested deeper than 64 blocks"),
        (encode_program(owned_twice()), "belongs to another operator or block"),
    ],
)
def test_lying_bytes_are_refused_with_their_place(raw: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decode_program(raw, "x.pb")


def test_damaged_programs_are_refused_or_read_as_they_are() -> None:
    """10,000 of them: `python -m tests.integrations.paddle.hostile`."""
    tally = judge_many(PROGRAMS, 100)
    assert tally["refused"] > 20
    assert tally.total() == 100
