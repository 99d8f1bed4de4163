"""Tensors that are computed at once: they hold what the static graph computes, and are freed when nobody needs them."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import GradientError, KernelError, SpecError
from sublet.base.tensor import NUMPY
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import backward, is_differentiable
from sublet.runtime.backends.reference import ReferenceBackend
from tests.dynamic.counted import Counted
from tests.nn.examples import EXAMPLES, case_of

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
BACKENDS = ("auto", "reference")


def interpreted(nodes: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """What nodes compute, by their definitions."""
    places = dict(arrays)
    for node in nodes:
        for value in node.uses:
            if value.literal is not None:
                places[value.name] = np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
        for value in node.defs:
            places[value.name] = np.empty(value.spec.shape, NUMPY[value.spec.dtype])
        kernel = ReferenceBackend().kernel(node, {})
        assert kernel is not None
        operands = [[None if v is None else places[v.name] for v in several] for several in (node.inputs, node.outputs)]
        kernel.bind(*operands, None)()
    return places


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_its_gradient_are_what_the_static_graph_writes(name: str) -> None:
    """The record keeps all that the rule of the command reads, whatever example it is."""
    for example in EXAMPLES[name]:
        case = case_of(COMMANDS[name], example)
        (node,) = case.graph.nodes
        d = sublet.DynamicGraph("reference")
        given = [None if value is None else d.tensor(case.arrays[value.name]) for value in node.inputs]
        made = d.apply(node.op, *given, **node.attrs)
        expected = interpreted([node], case.arrays)
        for tensor, value in zip(made, node.outputs, strict=True):
            assert value is not None
            np.testing.assert_array_equal(tensor.numpy(), expected[value.name])
        wrt = [
            (one, value) for one, value in zip(given, node.inputs, strict=True) if value and is_differentiable(value)
        ]
        if COMMANDS[name].gradient is None or not wrt or not is_differentiable(node.defs[0]):
            continue
        emit = Emitter.from_graph(case.graph)
        seed = emit.full(1, spec_of(node.defs[0]))
        grads = backward(emit, tuple(case.graph.nodes), {node.defs[0]: seed}, [value for _, value in wrt])
        found = sublet.gradients(made[0], [one for one, _ in wrt])
        del made
        expected = interpreted(
            emit.nodes, case.arrays | {seed.name: np.ones(made_shape(seed), NUMPY[spec_of(seed).dtype])}
        )
        for tensor, grad in zip(found, grads, strict=True):
            wanted = (
                np.zeros(tensor.shape)
                if grad is None
                else expected[grad.name]
                if grad.literal is None
                else grad.literal
            )
            np.testing.assert_array_equal(tensor.numpy(), np.reshape(wanted, tensor.shape).astype(tensor.numpy().dtype))


def made_shape(value: Any) -> tuple[int, ...]:
    return spec_of(value).shape


def test_arithmetic_slices_and_comparisons_are_numpys() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(X)
    y = (2 - x / 4) @ np.ones((4, 2), np.float32) * 0.5 + abs(-x).sum(1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), (2 - X / 4) @ np.ones((4, 2)) * 0.5 + np.abs(X).sum(1)[:, None], rtol=1e-6)
    for cut in ((0, 1), slice(1, None), (..., 0), (None, 1), -1):
        np.testing.assert_array_equal(x[cut].numpy(), X[cut])
    np.testing.assert_array_equal((x > 0).numpy(), X > 0)
    np.testing.assert_array_equal([row.tolist() for row in x], X)
    assert len(x) == 3
    assert x.reshape(-1).shape == (12,)
    assert list(range(3))[d.tensor(2)] == 2


def test_a_tensor_can_be_looked_at() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.float32(1.5))
    assert (float(x), int(x), bool(x), x.item(), f"{x:.2f}") == (1.5, 1, True, 1.5, "1.50")
    assert repr(d.tensor(X[0, :2])) == "Tensor([-1.       , -0.8181818], f32[2])"
    assert not (x > 2)
    looked = x.numpy()
    looked += 1
    assert float(x) == 1.5
    np.testing.assert_array_equal(np.asarray(d.tensor(X)), X)
    with pytest.raises(SpecError, match="has 12 elements"):
        bool(d.tensor(X))


def network(x: Any, labels: Any) -> Any:
    h = layers.batch_norm(layers.conv(x, 4, 3))
    h = layers.dense(nn.max_pool(nn.relu(h), kernel=(2, 2), strides=(2, 2)).reshape(x.shape[0], -1), 8)
    h = layers.layer_norm(nn.gelu(h))
    return nn.softmax_cross_entropy(layers.dense(h, 3), labels)[0].mean()


@pytest.mark.parametrize(
    "optimizer", [sublet.SGD(0.1, momentum=0.9), sublet.AdamW(0.01), sublet.Clipped(sublet.LAMB(0.01), 1)]
)
def test_training_does_what_the_static_step_does(optimizer: Any) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 2, 6, 6)).astype(np.float32)
    labels = random.integers(0, 3, 4)
    g = sublet.Graph()
    inputs = g.input("x", x.shape), g.input("labels", (4,), "i64")
    with g.scope("net"):
        loss = network(*inputs)
    static = sublet.compile(sublet.train_step(loss, g.parameters, optimizer))
    d = sublet.DynamicGraph()
    for _ in range(4):
        with d.scope("net"):
            found = network(d.tensor(x), d.tensor(labels))
        d.minimize(found, optimizer)
        np.testing.assert_allclose(float(found), static(x=x, labels=labels)["loss"], rtol=2e-5)
    held = {name: tensor.numpy() for name, tensor in d.weights.items()}
    assert {*held} == {*static.updated}
    for name, array in held.items():
        np.testing.assert_allclose(array, static.state(name), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients(backend: str) -> None:
    d = sublet.DynamicGraph(backend)
    x = d.tensor(X[0], "f64")
    (first,) = sublet.gradients((nn.tanh(x) * x**3).sum(), [x])
    (second,) = sublet.gradients(first.sum(), [x])
    e, t = X[0].astype(np.float64), np.tanh(X[0].astype(np.float64))
    np.testing.assert_allclose(first.numpy(), (1 - t**2) * e**3 + 3 * e**2 * t, rtol=1e-6, atol=1e-9)
    expected = -2 * t * (1 - t**2) * e**3 + 6 * e**2 * (1 - t**2) + 6 * e * t
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-6, atol=1e-9)


def test_gradients_take_no_checkpoint() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.ones(3))
    with pytest.raises(SpecError, match="`checkpoint` is not supported"):
        sublet.gradients(x.sum(), [x], checkpoint="sqrt")


def test_gradients_of_gradients_go_through_outputs_that_nobody_took() -> None:
    """The rule of layer_norm reads its mean and deviation, which depend on x as well."""
    d, g = sublet.DynamicGraph(), sublet.Graph()
    given = np.random.default_rng(1).normal(size=(2, 5))
    w = np.arange(10.0).reshape(2, 5)

    def twice(x: Any) -> Any:
        y = nn.layer_norm(x, epsilon=1e-5)[0]
        (first,) = sublet.gradients((y * y * w).sum(), [x])
        return sublet.gradients((first * first).sum(), [x])[0]

    g.output("second", twice(g.input("x", (2, 5), "f64")))
    np.testing.assert_allclose(twice(d.tensor(given)).numpy(), sublet.compile(g)(x=given)["second"], rtol=1e-9)


def test_gradients_where_nothing_depends_and_where_it_is_the_same() -> None:
    d = sublet.DynamicGraph()
    x, y = d.tensor(X), d.tensor(X)
    z = x + y
    a, b, c = sublet.gradients(z, [x, y, z])
    (zero,) = sublet.gradients((x * 2).sum(), [y])
    seed = d.tensor(X)
    (seeded,) = sublet.gradients(z, [x], seed)
    assert [float(one.sum()) for one in (a, b, c, zero)] == [12, 12, 12, 0]
    np.testing.assert_array_equal(seeded.numpy(), X)


def test_detach_no_grad_and_updates_end_the_record() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(X)
    w = d.parameter("w", initial=2.0)
    with d.no_grad():
        unrecorded = x * w
    for ended in (x.detach(), unrecorded):
        (zero,) = sublet.gradients((ended * 3).sum(), [x])
        assert not zero.numpy().any()
    before = x * w
    d.update(w, w * 10)
    (by_x,) = sublet.gradients(before.sum(), [x])
    assert float(by_x[0, 0]) == 2, "what was computed before the update keeps the content of then"
    assert float(w) == 20
    (by_w,) = sublet.gradients((w * w).sum(), [w])
    assert float(by_w) == 40


def freed(d: sublet.DynamicGraph, run: Callable[[], Any]) -> int:
    """Bytes that are still in use after a run, beside those before."""
    before = d.used_bytes
    run()
    return d.used_bytes - before


def test_what_nobody_holds_and_no_gradient_needs_is_freed() -> None:
    d = sublet.DynamicGraph()
    large = d.tensor(np.ones((64, 64), np.float32))
    nbytes = d.used_bytes
    gc.disable()  # by reference counts alone
    try:
        (large * large + 1).sum()
        assert d.used_bytes - nbytes < 4096, "numbers only"
        y = large
        for _ in range(100):
            y = nn.tanh(y * 0.5)  # a gradient by `large` may ask for each result of tanh
        assert 100 <= (d.used_bytes - nbytes) // nbytes <= 101
        del y
        assert d.used_bytes - nbytes < 4096
        y = nn.tanh(large)
        for _ in range(100):
            y = y + 1  # no rule reads these
        assert (d.used_bytes - nbytes) // nbytes == 2
        z = d.tensor(np.ones((64, 64), np.float32))
        del y
        for _ in range(100):
            z = nn.tanh(z)  # nobody holds what a gradient could be asked by
        assert (d.used_bytes - nbytes) // nbytes == 1
        del z
        assert d.used_bytes - nbytes < 4096
    finally:
        gc.enable()


def test_a_record_ends_when_the_last_tensor_it_leads_from_is_dropped() -> None:
    d = sublet.DynamicGraph()
    a, b = d.tensor(X), d.tensor(X)
    both = nn.exp(a) * nn.exp(b)
    del a
    assert both._symbol.maker is not None
    (by_b,) = sublet.gradients(both.sum(), [b])
    np.testing.assert_allclose(by_b.numpy(), np.exp(2 * X), rtol=1e-6)
    del b
    assert both._symbol.maker is None


def test_a_long_record_is_freed_without_recursion() -> None:
    d = sublet.DynamicGraph(backend="reference")
    x = d.tensor(np.float32(1))
    y = x
    for _ in range(20_000):
        y = nn.square(y)
    del y
    assert d.used_bytes < 1 << 16


def test_memory_is_used_again() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(X)
    for _ in range(50):
        y = nn.exp(x) + 1
        del y
    assert d.free_bytes + d.used_bytes < 4096


def test_layers_find_their_parameters_again() -> None:
    d = sublet.DynamicGraph()
    for _ in range(3):
        with d.scope("net"):
            layers.dense(layers.dense(d.tensor(X), 5), 2)
    assert [*d.weights] == [f"net/{layer}/{what}" for layer in ("dense", "dense_2") for what in ("weight", "bias")]
    with pytest.raises(SpecError, match="'net/dense/weight' was declared as"), d.scope("net"):
        layers.dense(d.tensor(X), 7)


def test_dropout_draws_other_numbers_each_time() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.ones(1000, np.float32))
    first, second = (layers.dropout(x, 0.5, name="drop").numpy() for _ in range(2))
    assert 400 < np.count_nonzero(first) < 600
    assert (first != second).any()


def test_what_is_still_there_is_not_computed_again() -> None:
    counted = Counted()
    d = sublet.DynamicGraph(counted)
    x, w, key = d.tensor(X), d.parameter("w", initial=X), d.tensor(7)
    once = nn.tanh(x), nn.tanh(x), x * 2, x * 2, nn.split(x, sizes=(1, 3), axis=1), nn.split(x, sizes=(1, 3), axis=1)
    assert counted.since() == {"nn.tanh": 1, "nn.mul": 1, "nn.split": 1}
    assert once[0] is once[1]
    with d.no_grad():
        assert nn.tanh(x) is not once[0], "no gradient goes through this one"
    (by_x,) = sublet.gradients((once[0] * once[1]).sum(), [x])
    np.testing.assert_allclose(by_x.numpy(), 2 * np.tanh(X) * (1 - np.tanh(X) ** 2), rtol=1e-5)
    counted.since()
    dropped = nn.exp(x).numpy(), nn.exp(x).numpy()  # nobody holds the first
    several = nn.tanh(w), nn.tanh(w), nn.dropout(x, key, rate=0.5, stream=1), nn.dropout(x, key, rate=0.5, stream=1)
    assert counted.since() == {"nn.exp": 2, "nn.tanh": 2, "nn.dropout": 2}
    del dropped, several
    d.update(w, w * 3)
    np.testing.assert_allclose(nn.tanh(w).numpy(), np.tanh(3 * X), rtol=1e-6)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x[100:200],
    "one row": lambda x: x[7],
    "rows of rows": lambda x: x[100:200][3:5],
    "reshape": lambda x: x.reshape(-1),
    "new axis": lambda x: x[:, None],
    "split": lambda x: nn.split(x, sizes=(300, 724), axis=0)[1],
    "transposed": lambda x: x[:, None].transpose(1, 0, 2),
    "detached": lambda x: x.detach()[1:],
    "squeezed": lambda x: nn.squeeze(nn.unsqueeze(x, 0)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_slices_and_reshapes_are_views(name: str) -> None:
    d = sublet.DynamicGraph()
    content = np.random.default_rng(0).normal(size=(1024, 16)).astype(np.float32)
    x = d.tensor(content)
    before = d.used_bytes
    y = VIEWS[name](x)
    assert d.used_bytes == before
    assert np.shares_memory(x._storage.array, y._storage.array)
    expected = y.numpy()
    del x
    assert d.used_bytes == before, "the view keeps the memory"
    others = [d.tensor(np.full((1024, 16), i, np.float32)) for i in range(3)]
    np.testing.assert_array_equal(y.numpy(), expected)
    del y, others
    assert d.used_bytes == 0


def test_a_view_keeps_bytes_but_no_value_of_a_call() -> None:
    """At a suspension point a plan saves what the call holds: the view, not the tensor behind the view."""
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any) -> Any:
        row = (x * 2)[3]
        assert float(row.sum()) > 0
        return row + 1

    for _ in range(3):
        found = step(np.ones((512, 64), np.float32))
    assert step.replayed == 2
    np.testing.assert_array_equal(found.numpy(), np.full(64, 3, np.float32))
    (cut,) = (node for node in step.graph.nodes if node.op == "cut.here")
    assert sum(value.nbytes for value in cut.uses) < 1024


def test_gradients_of_concatenations_and_reshapes_are_views() -> None:
    d = sublet.DynamicGraph()
    a, b = d.tensor(np.ones((512, 16))), d.tensor(np.ones((512, 16)))
    y = nn.concat([a, b], axis=0).reshape(-1)
    seed = d.tensor(np.arange(16384.0))
    before = d.used_bytes
    with d.no_grad():
        by_a, by_b = sublet.gradients(y, [a, b], seed)
    assert d.used_bytes == before
    assert np.shares_memory(by_a._storage.array, seed._storage.array)
    np.testing.assert_array_equal(by_b.numpy(), np.arange(8192.0, 16384).reshape(512, 16))


def test_views_of_a_parameter_keep_its_content() -> None:
    """A plan writes to the fixed memory of a parameter: no view may show the new content."""
    d = sublet.DynamicGraph()
    w = d.parameter("w", (4, 4), initial=1.0)
    views = [w.reshape(16), w[1:], w.detach()[2]]

    @d.jit
    def step() -> Any:
        loss = nn.square(w).sum()
        d.minimize(loss, sublet.SGD(0.25))
        return loss, w.reshape(16)

    for i in range(6):
        contents = [view.numpy() for view in views]
        views += [w.reshape(16), w[1:], w.detach()[2], step()[1], w.reshape(2, 8)[0]]
        for view, content in zip(views, contents, strict=False):
            np.testing.assert_array_equal(view.numpy(), content, err_msg=str(i))
    assert step.replayed == 5
    assert float(w[0, 0]) == 0.5**6


def test_results_that_are_gone_are_not_kept_in_mind() -> None:
    d = sublet.DynamicGraph("reference")
    x = d.tensor(X)
    for i in range(500):
        assert float((x + float(i)).sum() - x.sum()) == pytest.approx(12 * i, rel=1e-5)
    assert len(x.results or ()) <= 128


MISTAKES: dict[str, tuple[type[Exception], Callable[[sublet.DynamicGraph, Any], Any]]] = {
    "matmul": (SpecError, lambda d, x: x @ x),
    "takes up to 2 integers": (SpecError, lambda d, x: x[0, 0, 0]),
    "another graph": (SpecError, lambda d, x: x + sublet.DynamicGraph().tensor(X)),
    "belongs to another": (SpecError, lambda d, x: x + sublet.Graph().input("x", (3, 4))),
    "rounded to a number of i64": (SpecError, lambda d, x: x.astype("i64") + 0.5),
    "index out of range": (KernelError, lambda d, x: nn.index_select(x, np.array([7]), axis=0)),
    "only floating-point values": (
        GradientError,
        lambda d, x: sublet.gradients(nn.argmax(x, axis=0), [x]),
    ),
    "has no content": (SpecError, lambda d, x: d.parameter("w", (2,))),
    "not a parameter or state": (SpecError, lambda d, x: d.update(x, x)),
    "cannot be updated with": (SpecError, lambda d, x: d.update(d.parameter("v", (2,), initial=0), x)),
    "not an optimiser": (SpecError, lambda d, x: d.minimize(x.sum(), sublet.SGD)),
    "expected one number": (GradientError, lambda d, x: d.minimize(x, sublet.SGD(0.1), [x])),
    "minimize": (SpecError, lambda d, x: sublet.train_step(x.sum(), [x], sublet.SGD(0.1))),
    "is not a Tensor: convert it with d.tensor": (SpecError, lambda d, x: sublet.gradients(x, [3])),
    "not a number or an array of numbers": (SpecError, lambda d, x: d.tensor(["a"])),
}


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_told_by_the_users_line(what: str, calls: int) -> None:
    """At once, in a first call, and in one that goes on after what was replayed."""
    kind, mistake = MISTAKES[what]
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, wrong: bool) -> Any:
        y = x * 2
        return mistake(d, x) if wrong else y

    for _ in range(calls - 1):
        step(d.tensor(X), False)
    with pytest.raises(kind, match=f"^{re.escape(__file__)}:[0-9]+: ") as raised:
        step(d.tensor(X), True) if calls else mistake(d, d.tensor(X))
    assert what in str(raised.value)
    assert float(step(d.tensor(X), False).sum()) == pytest.approx(0, abs=1e-5), "the graph goes on"


def test_a_closed_graph_computes_no_more() -> None:
    with sublet.DynamicGraph() as d:
        x = d.tensor(X)
        y = x * 2
        loss = y.sum()
    np.testing.assert_array_equal(y.numpy(), X * 2)
    uses: list[Callable[[], Any]] = [
        lambda: x + 1,
        lambda: x + y,
        lambda: d.tensor(X),
        lambda: sublet.gradients(loss, [x]),
        lambda: d.parameter("w", initial=1),
        lambda: d.jit(nn.relu)(x),
        lambda: d.while_({"x": x}, rounds=1),
        lambda: d.case_of(x.sum() > 0),
        lambda: nn.relu(d.stop_gradient(x)),
    ]
    for use in uses:
        with pytest.raises(SpecError, match=f"^{re.escape(__file__)}:[0-9]+: .*is closed"):
            use()


def test_messages_tell_of_tensors_on_one_line_and_compute_nothing() -> None:
    d, other = sublet.DynamicGraph(), sublet.DynamicGraph().tensor(np.ones((9, 9)))

    @d.jit
    def step(x: Any) -> Any:
        h = x * 2
        with pytest.raises(SpecError, match=r"Tensor\(f64\[9,9\]\): there is no index 10 along axis 0$"):
            h[10]
        return h + 1

    with pytest.raises(SpecError, match=r": Tensor\(f64\[9,9\]\) belongs to another graph$"):
        d.tensor(1.0) + other

    for _ in range(3):
        step(d.tensor(np.ones((9, 9))))
    assert (step.planned, step.replayed) == (1, 2)
