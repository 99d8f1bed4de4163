"""Graphs written in Python: what they compute, and that mistakes are told by the line that made them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import SpecError
from sublet.base.tensor import DType, Unplannable
from sublet.ir.graph import While

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_arithmetic_is_numpys() -> None:
    g = sublet.Graph()
    x, w = g.input("x", (3, 4)), g.parameter("w", (4, 2), initial=np.arange(8).reshape(4, 2))
    y = (2 - x / 4) @ w * 0.5 + abs(-x).sum(1, keepdims=True)
    g.output("y", y)
    g.output("big", (y > 1) & ~(y >= 5))
    found = sublet.compile(g)(x=X)
    expected = (2 - X / 4) @ np.arange(8, dtype=np.float32).reshape(4, 2) * 0.5 + np.abs(X).sum(1, keepdims=True)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)
    np.testing.assert_array_equal(found["big"], (expected > 1) & ~(expected >= 5))


def test_slices_reshapes_and_types() -> None:
    g = sublet.Graph()
    x = g.input("x", (3, 4))
    g.output("cut", x[1:, ::2])
    g.output("row", x[-1])
    g.output("one", x[0, 3])
    g.output("flat", x.reshape(-1, 2))
    g.output("turned", x.T.astype("float64"))
    found = sublet.compile(g)(x=X)
    np.testing.assert_array_equal(found["cut"], X[1:, ::2])
    np.testing.assert_array_equal(found["row"], X[-1])
    assert found["one"] == X[0, 3]
    np.testing.assert_array_equal(found["flat"], X.reshape(-1, 2))
    assert found["turned"].dtype == np.float64
    np.testing.assert_array_equal(found["turned"], X.T)


def test_loop_over_a_sequence() -> None:
    g = sublet.Graph()
    xs = g.input("xs", (3, 4))
    with g.while_({"h": g.constant(np.zeros(4, np.float32))}, over={"x": xs}) as loop:
        h = loop["h"] + loop["x"] * loop.counter.astype("f32")
        loop.next(h=h)
        loop.stack(hs=h)
    g.output("h", loop["h"])
    g.output("hs", loop["hs"])
    expected = np.cumsum(X * np.arange(3, dtype=np.float32)[:, None], 0)
    executable = sublet.compile(g)
    for run in (executable, lambda xs: sublet.run_poisoned(executable, {"xs": xs})):
        found = run(xs=X)
        np.testing.assert_allclose(found["hs"], expected, rtol=1e-6)
        np.testing.assert_allclose(found["h"], expected[-1], rtol=1e-6)


def test_loop_backwards_takes_the_last_step_first_and_stacks_from_the_end() -> None:
    g = sublet.Graph()
    with g.while_({"h": g.input("h", (4,))}, over={"x": g.input("xs", (3, 4))}, backwards=True) as loop:
        loop.next(h=loop["h"] + loop["x"])
        loop.stack(hs=loop["h"])
    g.output("hs", loop["hs"])
    found = sublet.compile(g)(h=np.zeros(4, np.float32), xs=X)["hs"]
    np.testing.assert_allclose(found, [X[2] + X[1], X[2], np.zeros(4)], rtol=1e-6)


def test_check_ends_a_loop_and_max_trips_bounds_what_it_stacks() -> None:
    for most in (None, 10):
        g = sublet.Graph()
        with g.while_({"h": g.input("h")}, max_trips=most) as loop:
            loop.check(loop["h"] < 100)
            doubled = loop["h"] * 2
            loop.next(h=doubled)
            loop.stack(hs=doubled)
        g.output("h", loop["h"])
        g.output("hs", loop["hs"])
        (node,) = g.model().graph.nodes
        assert isinstance(node, While)
        (stacked,) = node.stacked_outputs
        assert stacked is not None
        assert isinstance(stacked.spec, Unplannable) == (most is None)
        found = sublet.compile(g)(h=np.float32(7))
        assert found["h"] == 112
        assert found["hs"].tolist() == [14, 28, 56, 112]


def test_branch_and_fallback() -> None:
    g = sublet.Graph()
    x, index = g.input("x", (4,)), g.input("index", (), "i64")
    with g.case_of(index, fallback=(x, x * 0)) as case:
        for factor in (2, 3):
            with case.arm():
                case.give(x * factor, x + factor)
    g.output("a", case[0])
    g.output("b", case[1])
    executable = sublet.compile(g)
    for index_now, factor in ((0, 2), (1, 3)):
        found = executable(x=X[0], index=np.int64(index_now))
        np.testing.assert_allclose(found["a"], X[0] * factor)
        np.testing.assert_allclose(found["b"], X[0] + factor)
    assert executable(x=X[0], index=np.int64(-1))["b"].tolist() == [0] * 4


def test_state_stays_from_run_to_run() -> None:
    g = sublet.Graph()
    total = g.state("total", (4,))
    g.update(total, total + g.input("x", (4,)))
    executable = sublet.compile(g)
    for _ in range(3):
        executable(x=X[0])
    np.testing.assert_allclose(executable.state("total"), 3 * X[0], rtol=1e-6)


def test_indices_are_numpys() -> None:
    g = sublet.Graph()
    x, rows, row = g.input("x", (3, 4)), g.constant([2, 0, 2]), g.input("row", (), "i64")
    cuts = [(..., 0), (slice(None), None, 1), np.int64(-1), (None, ..., slice(1, 3)), (1, ...), (-2, -1)]
    for i, cut in enumerate(cuts):
        g.output(str(i), x[cut])
    g.output("rows", x[rows])
    g.output("row", x[row])
    found = sublet.compile(g)(x=X, row=1)
    for i, cut in enumerate(cuts):
        np.testing.assert_array_equal(found[str(i)], X[cut])
    np.testing.assert_array_equal(found["rows"], X[[2, 0, 2]])
    np.testing.assert_array_equal(found["row"], X[1])


def test_whole_numbers_divide_and_numbers_take_the_type_beside_them() -> None:
    g = sublet.Graph()
    i, x = g.input("i", (5,), "i64"), g.input("x", (3, 4))
    for name, tensor in (("//", i // 3), ("%", i % 3), ("x//", x // 0.5), ("x%", x % 0.5), ("**", 2**x)):
        g.output(name, tensor)
    g.output("np", x * np.int64(2) + np.float64(1))
    g.output("true", (x > 0) & True)
    g.output("most", x.max(1) - x.min((1,)))
    whole = np.array([-4, -3, 0, 2, 7])
    found = sublet.compile(g)(i=whole, x=X)
    np.testing.assert_array_equal(found["//"], whole // 3)
    np.testing.assert_array_equal(found["%"], whole % 3)
    np.testing.assert_allclose(found["x//"], X // 0.5)
    np.testing.assert_allclose(found["x%"], X % 0.5, atol=1e-6)
    np.testing.assert_allclose(found["**"], 2**X, rtol=1e-6)
    np.testing.assert_allclose(found["np"], X * 2 + 1, rtol=1e-6)
    np.testing.assert_array_equal(found["true"], X > 0)
    np.testing.assert_allclose(found["most"], np.ptp(X, 1), rtol=1e-6)


def test_a_parameter_inside_a_loop_is_one_for_all_rounds() -> None:
    g = sublet.Graph()
    h = g.input("h", (4,))
    with g.scope("rnn"), g.while_({"h": h}, rounds=3) as loop:
        w = g.parameter("w", (4,), initial=2)
        loop.next(h=loop["h"] * w)
    g.output("h", loop["h"])
    g.output("w", w)
    assert [parameter.name for parameter in g.parameters] == ["rnn/w"]
    found = sublet.compile(g)(h=X[0])
    np.testing.assert_array_equal(found["h"], 8 * X[0])
    np.testing.assert_array_equal(found["w"], [2] * 4)


def test_what_is_updated_is_known_before_and_after() -> None:
    g = sublet.Graph()
    total = g.state("total", (4,), initial=1)
    g.update(total, total + g.input("x", (4,)))
    average = g.state("average", (4,))
    g.update(average, 0.5 * average + 0.5 * g.after(total))
    g.output("before", total)
    g.output("after", g.after(total))
    for executable in (sublet.compile(g), sublet.compile(sublet.less_memory(g))):
        assert executable(x=X[0])["before"].tolist() == [1] * 4
        found = executable(x=X[1])
        np.testing.assert_array_equal(found["before"], 1 + X[0])
        np.testing.assert_array_equal(found["after"], 1 + X[0] + X[1])
        np.testing.assert_allclose(executable.state("average"), 0.75 + 0.75 * X[0] + 0.5 * X[1], rtol=1e-6)


def test_initial_contents() -> None:
    g = sublet.Graph()
    drawn = g.parameter("drawn", (50, 50), initial=layers.normal(0.5))
    given = g.parameter("given", initial=[[1, 2], [3, 4]])
    g.output("drawn", drawn)
    g.output("same", g.parameter("same", (3,), "bf16", 0.5))
    g.output("given", given)
    found = sublet.compile(g)()
    assert found["drawn"].std() == pytest.approx(0.5, rel=0.1)
    np.testing.assert_array_equal(found["drawn"], sublet.compile(g)()["drawn"])
    assert found["same"].astype(np.float32).tolist() == [0.5] * 3
    assert found["given"].tolist() == [[1, 2], [3, 4]]


def test_layers_without_a_name_are_numbered() -> None:
    g = sublet.Graph()
    x = g.input("x", (2, 3))
    for _ in range(2):
        with g.scope("block"):
            x = layers.dense(x, 3, bias=False)
    layers.dense(layers.dense(x, 3, bias=False), 3, bias=False, name="head")
    names = ["block/dense/weight", "block/dense_2/weight", "dense/weight", "head/weight"]
    assert [parameter.name for parameter in g.parameters] == names


def test_dropout_drops_others_in_each_layer_round_and_run() -> None:
    g = sublet.Graph()
    x = g.input("x", (1000,))
    with g.while_(rounds=2) as loop:
        loop.stack(alike=layers.dropout(x, 0.25), other=layers.dropout(x, 0.25, key=g.key() + loop.counter))
    for name, tensor in (("a", layers.dropout(x, 0.25)), ("b", layers.dropout(x, 0.25)), ("in use", x)):
        with g.evaluation() if name == "in use" else nullcontext():
            g.output(name, layers.dropout(tensor, 0.25))
    g.output("alike", loop["alike"])
    g.output("other", loop["other"])
    executable = sublet.compile(g)
    ones = np.ones(1000, np.float32)
    first, second = executable(x=ones), executable(x=ones)
    assert first["in use"].tolist() == [1] * 1000
    np.testing.assert_array_equal(*first["alike"])
    drawn = [first["a"], first["b"], *first["other"], second["a"], *second["other"]]
    assert len({each.tobytes() for each in drawn}) == len(drawn)
    assert np.mean(first["other"] == 0) == pytest.approx(0.25, abs=0.05)


def test_what_failed_can_be_written_again() -> None:
    g = sublet.Graph()
    x = g.input("x", (2, 4))

    def encoder(width: int) -> Any:
        with g.scope("encoder"):
            y = layers.dense(layers.dropout(x, 0.1), width, name="a")
            g.output("y", y)
            return y @ x.T

    for _ in range(2):
        with pytest.raises(SpecError, match="expected equal"):
            encoder(3)
    before = g.model()
    assert [value.name for value in before.graph.weights if value.literal is None] == []
    assert before.graph.updates == ()
    assert before.graph.nodes == ()
    encoder(4)
    assert [parameter.name for parameter in g.parameters] == ["encoder/a/weight", "encoder/a/bias"]
    assert sublet.compile(g)(x=X[:2])["y"].shape == (2, 4)


def test_a_tensor_that_was_taken_back_is_no_longer_known() -> None:
    g = sublet.Graph()
    x = g.input("x", (2, 4))
    kept = []

    def failing() -> None:
        with g.scope("a"):
            kept.append(x * 2)
            kept.append(x @ x)

    with pytest.raises(SpecError, match="expected equal"):
        failing()
    with pytest.raises(SpecError, match="was removed from the graph"):
        nn.relu(kept[0])


def test_nodes_know_the_line_and_the_scope() -> None:
    g = sublet.Graph()
    with g.scope("layer1"), g.scope("inner"):
        y = nn.relu(g.input("x", (2,)))
    g.output("y", y)
    (node,) = g.model().graph.nodes
    assert re.fullmatch(r".*test_graph\.py:\d+", node.source)
    assert node.name == "layer1/inner/relu"


def test_every_command_is_a_function_with_a_signature() -> None:
    assert "clamp" in dir(nn)
    assert str(__import__("inspect").signature(nn.clamp)) == "(x, /, *, low, high)"
    assert str(__import__("inspect").signature(nn.exp)) == "(x, /)"
    with pytest.raises(AttributeError, match=r"no command nn\.rellu; did you mean nn\.relu"):
        nn.rellu  # noqa: B018
    with pytest.raises(AttributeError, match=r"a Tensor has no 'relu'; call nn\.relu"):
        sublet.Graph().input("x").relu()


def _bare() -> tuple[sublet.Graph, Any]:
    g = sublet.Graph()
    return g, g.input("x", (3, 4))


def _leaked(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        inner = loop["h"] * 2
        loop.next(h=inner)
    nn.relu(inner)


def _no_next(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2):
        pass


def _endless(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}) as loop:
        loop.next(h=loop["h"])


def _changed_shape(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        loop.next(h=loop["h"].sum(0))


def _arms_differ(g: sublet.Graph, x: Any) -> None:
    with g.case_of(x.sum() > 0) as case:
        with case.arm():
            case.give(x)
        with case.arm():
            case.give(x.sum(0))


def _arm_without_result(g: sublet.Graph, x: Any) -> None:
    with g.case_of(x.sum() > 0) as case, case.arm():
        pass


def _inner_input(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2):
        g.input("late", (2,))


def _over(g: sublet.Graph, x: Any) -> Any:
    with g.while_({"h": x}, rounds=2) as loop:
        loop.next(h=loop["h"] * 2)
    return loop


def _arm(
    g: sublet.Graph, x: Any, inside: Callable[[Any], Any], after: Callable[[Any], Any] = lambda case: case
) -> None:
    with g.case_of(x.sum() > 0) as case:
        for _ in range(2):
            with case.arm():
                case.give(x)
        inside(case)
    after(case)


def _one_arm(g: sublet.Graph, x: Any) -> None:
    with g.case_of(x.sum() > 0) as case, case.arm():
        case.give(x)


def _row_inside(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        loop.stack(rows=x)
        loop["rows"]


def _python_condition(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}) as loop:
        loop.check(True)  # type: ignore[arg-type]


def _next_number(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        loop.next(h=1)  # type: ignore[arg-type]


MISTAKES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda g, x: x + g.input("y", (3,)), r"nn\.add: f32\[3,4\] and f32\[3\] cannot be broadcast"),
    (lambda g, x: x + g.input("y", (3, 4), "f64"), "their types must be equal. Use nn.cast."),
    (lambda g, x: nn.relu(x, slope=1), "no attribute 'slope'"),
    (lambda g, x: nn.clamp(x, low=0), "needs the attribute 'high'"),
    (lambda g, x: g.input("x", (2,)), "the name 'x' is taken"),
    (lambda g, x: g.input("y", (2, -1)), "negative dimension"),
    (lambda g, x: g.input("y", 3), "must be a sequence of integers"),
    (lambda g, x: g.input("y", (), "f33"), "unknown data type 'f33'"),
    (lambda g, x: bool(x), "has no content before a run: use g.case_of"),
    (lambda g, x: list(x), "cannot be iterated"),
    (lambda g, x: x[5], "there is no index 5 along axis 0"),
    (lambda g, x: x[::-1], "step -1 along axis 0 is not positive"),
    (lambda g, x: x.reshape(5, -1), "12 elements"),
    (lambda g, x: nn.add(x, sublet.Graph().input("x", (3, 4))), "belongs to another graph"),
    (lambda g, x: g.update(x * 2, x), "is not a parameter, state or input"),
    (lambda g, x: g.update(x, x.sum()), "shape or type differs"),
    (lambda g, x: g.parameter("w", (3,), initial=np.zeros(4)), r"has shape \[4\]"),
    (_leaked, "belongs to the body of the loop at .* and cannot be used outside"),
    (_no_next, "carries h: call loop.next"),
    (_endless, "never ends: pass `rounds`"),
    (_changed_shape, "loop.next received Tensor"),
    (_arms_differ, "the other arms give"),
    (_arm_without_result, "has no results: call case.give"),
    (lambda g, x: g.input("i", (3,), "i64") * 0.5, "0.5 would be rounded to a number of i64"),
    (lambda g, x: g.input("i", (3,), "i64") / 2, r"has integer elements: use //"),
    (lambda g, x: x + "a", "'a' is not a number"),
    (lambda g, x: g.constant([[1], [2, 3]]), "is not an array of numbers"),
    (lambda g, x: g.constant(300, "u8"), "300 is not exact as a number of u8"),
    (lambda g, x: g.constant(2**70, "i64"), "is not a number or an array of numbers"),
    (lambda g, x: g.input(3, (2,)), "3 is not a name"),
    (lambda g, x: g.input("", (2,)), "'' is not a name"),
    (lambda g, x: g.input("y", ("batch", 2)), "must be a sequence of integers"),
    (lambda g, x: g.input("y", (), float), "unknown data type"),
    (lambda g, x: g.state("s", (3,), initial=[1, 2]), r"has shape \[2\]"),
    (lambda g, x: g.output(x, "y"), "str is not a Tensor"),
    (lambda g, x: g.output("y", 3.0), "convert it with g.constant"),
    (lambda g, x: g.update(g.constant(np.ones(40)), x), "is not a parameter, state or input"),
    (lambda g, x: float(x), "has no content before a run"),
    (lambda g, x: np.asarray(x), "has no content before a run"),
    (lambda g, x: x[x > 0], "is not an index: expected i32 or i64"),
    (lambda g, x: x["0"], "use nn.index_select"),
    (lambda g, x: x[0, 0, 0], "takes up to 2 integers or slices"),
    (lambda g, x: x.sum("a"), "must be integers"),
    (lambda g, x: layers.dense(x.sum(), 3), r"must have the axes \[..., I\]"),
    (lambda g, x: layers.self_attention(x.reshape(1, 3, 4), 3), "cannot be split into 3 heads"),
    (lambda g, x: layers.dense(np.ones((2, 2)), 3), "ndarray is not a Tensor"),
    (lambda g, x: layers.dense([[1.0, 2.0]], 3), "list is not a Tensor: make an array with numpy.array"),
    (lambda g, x: g.output("y", [1.0]), "list is not a Tensor: convert it with g.constant"),
    (lambda g, x: layers.dense(nn.split(x, axis=0, sizes=(1, 2)), 3), "tuple is not a Tensor: pass one item"),
    (lambda g, x: g.while_({"h": x}, rounds=x), "must be an integer >= 0; for a number known only at run time"),
    (lambda g, x: g.while_({"h": x}, max_trips=0), "must be an integer >= 1"),
    (lambda g, x: g.while_({"h": x}, over={"h": x}), "use two names"),
    (lambda g, x: g.while_({"h": x}, rounds=2)["h"], "is not open: write its body"),
    (lambda g, x: g.while_({"h": 0}, rounds=2), "int is not a Tensor: convert it with g.constant"),
    (lambda g, x: _over(g, x).stack(rows=x), "is over"),
    (lambda g, x: _over(g, x).__enter__(), "is written already"),
    (_row_inside, "stacked rows can be read after the loop"),
    (_python_condition, "bool is not a Tensor"),
    (_next_number, "int is not a Tensor"),
    (lambda g, x: g.case_of(x.sum()), "expected one bool or integer"),
    (lambda g, x: _arm(g, x, lambda case: case.give(x)), "must be called inside an arm"),
    (lambda g, x: _arm(g, x, lambda case: case[0]), "can be read after the branch"),
    (lambda g, x: _arm(g, x, lambda case: None, lambda case: case[1]), "has no result 1; number of results: 1"),
    (_one_arm, "has no arm for True"),
    (_inner_input, "is declared only outside of loops and branches"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_told_by_their_line(mistake: Callable[[Any, Any], Any], message: str) -> None:
    g, x = _bare()
    with pytest.raises(SpecError, match=message) as caught:
        mistake(g, x)
    assert re.match(r".*test_graph\.py:\d+: ", str(caught.value))


def test_types_by_any_of_their_names() -> None:
    g = sublet.Graph()
    assert [g.input(f"x{i}", (), name).dtype for i, name in enumerate(("f32", "float32", DType.F32))] == [DType.F32] * 3


def test_a_carried_index_that_starts_as_a_constant_is_no_constant_index() -> None:
    """In the first round the parameter stands for a literal; what it selects is a view in that round alone."""
    g = sublet.Graph()
    table = g.input("table", (8, 4))
    with g.while_({"at": g.constant(2, "i64"), "h": g.input("h", (4,))}, rounds=3) as loop:
        loop.next(at=loop["at"] + 1, h=loop["h"] + nn.select(table, loop["at"]))
    g.output("h", loop["h"])
    rows = np.arange(32, dtype=np.float32).reshape(8, 4)
    found = sublet.run_poisoned(sublet.compile(g), {"table": rows, "h": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(found["h"], rows[2:5].sum(0))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_convolution_spells_its_attributes_as_the_command_does(axes: int) -> None:
    extents = (9, 8, 7)[:axes]
    attrs = {"strides": (2, 1, 3)[:axes], "pads": (1, 0, 2)[:axes] + (0, 2, 1)[:axes], "dilations": (1, 2, 1)[:axes]}
    g = sublet.Graph("g")
    x = g.input("x", (2, 4, *extents))
    made = layers.conv(x, 6, (3, 2, 3)[:axes], groups=2, bias=False, **attrs)
    assert made.shape == nn.conv(x, g.parameters[0], groups=2, **attrs).shape
    kept = layers.conv(x, 6, 3, strides=1, dilations=2)
    assert kept.shape == (2, 6, *extents), "an odd kernel at stride 1 keeps the extent"


@pytest.mark.parametrize(
    ("reduce", "words"),
    [
        (lambda x: nn.sum(x, axis=0), "nn.sum has no attribute 'axis'. Its attributes: axes, keepdims."),
        (lambda x: nn.var(x, dim=0), "nn.var has no attribute 'dim'. Its attributes: axes, keepdims, correction."),
        (lambda x: nn.std(x, axis=0), "nn.std has no attribute 'axis'. Its attributes: axes, keepdims, correction."),
        (lambda x: nn.any(x, axis=0), "nn.any has no attribute 'axis'. Its attributes: axes, keepdims."),
        (lambda x: nn.all(x=x, axis=0), "nn.all has no attribute 'axis'. Its attributes: axes, keepdims."),
        (lambda x: nn.squeeze(x, axis=0), "nn.squeeze has no attribute 'axis'. Its attributes: axes."),
        (
            lambda x: x.mean(axis=0),
            "Tensor.mean has no attribute 'axis'. Its attributes: axes (by position), keepdims.",
        ),
        (lambda x: x.max(axes=0), "Tensor.max has no attribute 'axes'. Its attributes: axes (by position), keepdims."),
    ],
)
@pytest.mark.parametrize("make", [sublet.Graph, lambda name: sublet.DynamicGraph()])
def test_a_wrong_keyword_of_a_reduction_names_the_right_one(make: Any, reduce: Any, words: str) -> None:
    graph = make("g")
    x = graph.input("x", (2, 3)) if isinstance(graph, sublet.Graph) else graph.tensor(np.ones((2, 3), np.float32))
    with pytest.raises(SpecError, match=re.escape(words)) as raised:
        reduce(x)
    assert "test_graph.py:" in str(raised.value)
