"""What operators may share: the facts that the dialect tells, and what TFLM's kernels say to them."""

from __future__ import annotations

import pytest

from sublet.integrations.tflite import plan_offsets as tflm
from sublet.integrations.tflite.dialect import kernel_facts
from sublet.integrations.tflite.program import OPERATORS, PLACEHOLDER, decode
from sublet.integrations.tflite.reader import from_program
from sublet.ops import lookup
from sublet.ops.op import Share
from tests.integrations.tflite.find_facts import given, overwriting, passing, sharing, verdicts
from tests.integrations.tflite.kernels import Case, binary, mixing, others, pieces, slice_options, unary
from tests.integrations.tflite.kernels_elsewhere import UNTRIED, elsewhere
from tests.integrations.tflite.written import ADD, G, O, T, byte, integer, tflite

needs_tflm = pytest.mark.skipif(not tflm.is_available(), reason=f"needs the package {tflm.PACKAGE}")
SAMPLE = 61


def shares(tensors: list[T], operator: O, kind: str) -> tuple[Share, ...]:
    """What the dialect says of one operator."""
    graph = from_program(
        decode(tflite(G(tensors, [operator], given(tensors, operator), operator.outputs)), "one")
    ).graph
    found: tuple[Share, ...] = getattr(lookup(graph.nodes[0].op), kind)(graph.nodes[0])
    return found


def numbers(*values: int) -> T:
    return T((len(values),), "i32", values)


def test_an_output_may_take_the_place_of_an_operand_of_its_shape() -> None:
    whole, row, one = T((2, 8)), T((8,)), T((2, 8), content=1)
    both = O("ADD", (0, 1), (2,), ADD)
    assert shares([whole, whole, whole], both, "inplace") == (Share(0, 0), Share(0, 1))
    assert shares([row, whole, whole], both, "inplace") == (Share(0, 1),)
    assert shares([one, whole, whole], both, "inplace") == (Share(0, 1),), "a constant lies in the file"
    assert shares([whole, whole], O("ADD", (0, 0), (1,), ADD), "inplace") == (Share(0, 0),)


def test_what_was_not_tried_is_not_in_place() -> None:
    assert shares([T((2, 8)), T((2, 8))], O("GELU", (0,), (1,)), "inplace") == ()
    assert shares([T((2, 8), "u32"), T((2, 8), "u32")], O("ABS", (0,), (1,)), "inplace") == ()
    assert shares([T((2, 8)), T((2, 8)), T((2, 8))], O("custom", (0, 1), (2,)), "inplace") == ()
    assert "FULLY_CONNECTED" not in kernel_facts()["inplace"]


def test_views_are_bytes_of_their_input() -> None:
    x = T((4, 6))
    cut = O("STRIDED_SLICE", (0, 1, 2, 3), (4,), slice_options())
    told = [numbers(1, 0), numbers(3, 6), numbers(1, 1)]
    assert shares([x, *told, T((2, 6))], cut, "views") == (Share(0, 0, 24),)
    assert shares([x, numbers(-2, 0), numbers(4, 6), numbers(1, 1), T((2, 6))], cut, "views") == (Share(0, 0, 48),)
    assert shares([x, numbers(0, 1), numbers(4, 6), numbers(1, 1), T((4, 5))], cut, "views") == (), "not in a row"
    assert shares([x, numbers(0, 0), numbers(4, 6), numbers(2, 1), T((2, 6))], cut, "views") == (), "a step of 2"
    halves = O("SPLIT", (0, 1), (2, 3), (35, {0: integer(2)}))
    assert shares([T((), "i32", 0), x, T((2, 6)), T((2, 6))], halves, "views") == (Share(0, 1), Share(1, 1, 48))
    assert shares([T((), "i32", 1), x, T((4, 3)), T((4, 3))], halves, "views") == ()
    assert shares([T((4, 6), content=1), numbers(24), T((24,))], O("RESHAPE", (0, 1), (2,)), "views") == ()


def test_parts_lie_in_their_output() -> None:
    for axis in (0, -2):
        joined = O("CONCATENATION", (0, 1), (2,), (10, {0: integer(axis), 1: byte(0)}))
        assert shares([T((1, 6)), T((3, 6)), T((4, 6))], joined, "parts") == (Share(0, 0), Share(0, 1, 24))
    beside = O("CONCATENATION", (0, 1), (2,), (10, {0: integer(1), 1: byte(0)}))
    assert shares([T((2, 6)), T((2, 6)), T((2, 12))], beside, "parts") == ()


def test_operators_that_read_elsewhere_are_in_place_as_far_as_they_were_seen_to_be() -> None:
    """A recurrent layer reads an input before it writes it; a convolution reads its neighbours after that."""
    found = {}
    for case in (case for case in elsewhere() if case.tensors[-1].dtype == "f32"):
        found.setdefault(case.operator.name, set()).add(bool(shares(list(case.tensors), case.operator, "inplace")))
    for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "MEAN", "SUM", "BATCH_MATMUL", "REVERSE_V2"):
        assert found[name] == {False}, name
    for name in ("PAD", "RESIZE_BILINEAR", "SPACE_TO_DEPTH", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"):
        assert True in found[name], name
    lstm = next(case for case in elsewhere() if case.operator.name == "UNIDIRECTIONAL_SEQUENCE_LSTM")
    told = shares(list(lstm.tensors), lstm.operator, "inplace")
    assert told[0] == Share(0, 0)
    assert len(told) == 3, "and both of its states are changed where they are"


def test_a_transposition_of_axes_of_one_and_rows_in_order_are_views() -> None:
    def turned(order: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Share, ...]:
        after = tuple(shape[axis] for axis in order)
        return shares([T(shape), numbers(*order), T(after)], O("TRANSPOSE", (0, 1), (2,)), "views")

    assert turned((0, 2, 1), (4, 1, 6)) == turned((1, 0, 2), (1, 4, 6)) == (Share(0, 0),)
    assert turned((1, 0), (4, 6)) == turned((2, 0, 1), (4, 1, 6)) == ()

    def gathered(chosen: T, shape: tuple[int, ...], axis: int = 0) -> tuple[Share, ...]:
        gather = O("GATHER", (0, 1), (2,), (23, {0: integer(axis)}))
        return shares([T((4, 6)), chosen, T(shape)], gather, "views")

    assert gathered(numbers(1, 2), (2, 6)) == gathered(T((), "i32", 1), (6,)) == (Share(0, 0, 24),)
    assert gathered(numbers(2, 1), (2, 6)) == gathered(numbers(1, 2), (4, 2), 1) == gathered(numbers(4), (1, 6)) == ()


@needs_tflm
def test_every_operator_that_tflm_has_is_tried_or_said_why_not() -> None:
    ends = O("RFFT2D", (0,), (1,))  # unknown too: no model is opened, none runs
    names = [name for name in OPERATORS if name not in ("CUSTOM", "DELEGATE", OPERATORS[PLACEHOLDER])]
    raws = [tflite(G([T((2, 2)), T((2, 2))], [O(name, (0,), (1,)), ends], [0], [1])) for name in names]
    answers = tflm.run_trials([tflm.Trial(raw, 1, 1, 1) for raw in raws])
    known = {name for name, answer in zip(names, answers, strict=True) if f"opcode '{name}'" not in answer.refused}
    cases = {case.operator.name for case in (*unary(), *binary(), *others(), *mixing(), *elsewhere())}
    assert len(known) == 100
    assert cases | {piece.operator.name for piece in pieces()} | UNTRIED.keys() == known


@needs_tflm
def test_the_kernels_bear_out_a_sample_of_the_facts() -> None:
    known = {(name, types, over, kind) for name, rows in kernel_facts()["inplace"].items()
             for types, over, *kinds in rows for kind in kinds}  # fmt: skip
    cases: list[Case] = [*[*unary(), *binary(), *others()][::SAMPLE], *[*elsewhere()][::11]]
    told = dict.fromkeys((case.key for case in cases), True)
    for case, verdict in zip(cases, verdicts(cases, overwriting), strict=True):
        assert verdict or case.key not in known, case
    assert len(told.keys() & known) > 40
    moved = list(pieces())
    for piece, verdict in zip(moved, verdicts(moved, sharing), strict=True):
        assert verdict is not False or piece.operator.name not in kernel_facts()[f"{piece.kind}s"], piece


@needs_tflm
def test_the_experiment_notices_what_is_overwritten() -> None:
    assert passing(mixing()) == {}
