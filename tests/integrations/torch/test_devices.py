"""Arenas on a device, on the CPU and on `meta`; on a GPU where there is one."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import sublet
from sublet.base.errors import ModelError, RunError, SubletError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sublet.integrations.torch.compile.backend import _default_kernels, compile_region  # noqa: E402
from sublet.integrations.torch.compile.caller_outputs import COPY_OUT  # noqa: E402
from sublet.integrations.torch.compile.device_pool import DeviceArena  # noqa: E402
from sublet.integrations.torch.compile.joint_graph import capture_program  # noqa: E402
from sublet.integrations.torch.dialect import DEVICE, ROW_BY_ROW  # noqa: E402
from sublet.integrations.torch.kernels.device import _AllocatingCall, _VerifiedCall  # noqa: E402
from sublet.integrations.torch.operator_facts import facts_by_name  # noqa: E402
from sublet.integrations.torch.reader.exported_program import device_of  # noqa: E402
from sublet.ir.graph import Node  # noqa: E402
from sublet.runtime.moves import copy_elements  # noqa: E402
from tests.integrations.torch.on_device import (  # noqa: E402
    OnDevice,
    Tape,
    backend,
    recorded,
)

F = nn.functional


@dataclass(frozen=True)
class Way:
    """A device, what compiles for it, and whether calls are recorded. Of a GPU as much as rounding allows is asked."""

    device: str
    compile: Callable[[Any], Any]
    records: bool = False

    def agree(self, mine: Any, right: Any) -> bool:
        """Whether both are the same tensor, bit for bit on the CPU."""
        exact = self.device == "cpu" or not right.is_floating_point()
        return bool(torch.equal(mine, right) if exact else torch.allclose(mine, right, rtol=1e-3, atol=1e-5))

    def drawn(self) -> Any:
        """The state of the device's generator."""
        return torch.get_rng_state() if self.device == "cpu" else torch.cuda.get_rng_state()


def _sublet(**options: Any) -> Callable[[Any], Any]:
    return lambda function: torch.compile(function, backend="sublet", options=options)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
EACH = pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way("cpu", lambda f: torch.compile(f, backend=backend)), id="as on a device"),
        pytest.param(Way("cpu", lambda f: torch.compile(f, backend=recorded), records=True), id="recorded"),
        pytest.param(Way("cuda", _sublet(kernels="sublet")), id="CUDA", marks=GPU),
        pytest.param(Way("cuda", _sublet(graphs=True), records=True), id="CUDA graphs", marks=GPU),
    ],
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


class Net(nn.Module):
    """Convolution, statistics of batches, drawn numbers, attention, views, an embedding, numbers without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.words = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Embedding(7, 8)
        self.attend, self.last = nn.Linear(8, 24), nn.Linear(8, 5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any, words: Any) -> Any:
        self.calls += 1
        y = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(2).transpose(1, 2)
        y = F.dropout(torch.cat([y, self.words(words)], 1), 0.25)
        q, k, v = self.attend(y).chunk(3, -1)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        y = torch.where(y > 0, F.gelu(y), 0.0)
        return F.cross_entropy(self.last(y.mean(1)), words[:, 0] % 5)


@EACH
def test_what_a_backward_needs_of_an_input_may_not_be_changed_before(way: Way) -> None:
    """Also where the input is read transposed, so that the backward is given elements of it."""
    given, w = torch.randn(4, 4, device=way.device), torch.randn(4, 4, device=way.device, requires_grad=True)
    for read in (lambda x: x, lambda x: x.t()):
        loss = way.compile(lambda x, w, read=read: (read(x) @ w).exp().sum())(given, w)
        given.add_(1)
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()


@EACH
def test_training_is_eager_training_bit_for_bit(way: Way) -> None:
    """Losses, gradients, buffers, parameters and the generator."""
    states = []
    for run in (lambda module: module, way.compile):
        torch.manual_seed(3)
        module = Net().to(way.device)
        optimizer, network, found = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9), run(module), []
        for _ in range(5):
            optimizer.zero_grad()
            x, words = torch.randn(4, 3, 8, 8), torch.randint(0, 7, (4, 6))
            loss = network(x.to(way.device), words.to(way.device))
            loss.backward()
            optimizer.step()
            found += [loss.detach(), *(each.grad.clone() for each in module.parameters())]
        states.append([*found, *module.state_dict().values(), way.drawn()])
    for right, mine in zip(*states, strict=True):
        assert way.agree(mine, right)
    told = sublet.torch.report()[-1]
    assert told.plan is not None
    assert told.plan.gap == 0


def test_inductor_generates_kernels_by_default_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        here, there = (torch.empty(2, device=device) for device in ("cpu", "cuda"))
    for has_triton in (False, True):
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda has_triton=has_triton: has_triton)
        assert _default_kernels([here, 3], {}) == "sublet"
        assert _default_kernels([3, there], {"budget": 5}) == ("inductor" if has_triton else "sublet")
        assert _default_kernels([there], {"graphs": True}) == "sublet"


@GPU
@pytest.mark.parametrize("budget", [None, 0.7])
def test_steps_with_kernels_of_inductor_on_a_gpu(budget: float | None) -> None:
    """The steps are those of eager PyTorch, and the allocator counts no more bytes than the report and rounding."""
    layers = [(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256)) for _ in range(6)]
    network = nn.Sequential(*[each for layer in layers for each in layer]).to("cuda")
    x, options, found, way = torch.randn(2048, 256, device="cuda"), {}, [], Way("cuda", _sublet())
    for turn in range(2 if budget is None else 3):
        module = copy.deepcopy(network)
        torch._dynamo.reset()
        run = torch.compile(module, backend="sublet", options=options) if turn else module
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            gc.collect()
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run(x).square().mean().backward()
            optimizer.step()
        found.append([*module.state_dict().values()])
        if turn:
            record = sublet.torch.report()[-1]
            peak = torch.cuda.max_memory_allocated() - held
            gradients = sum(each.nbytes for each in module.parameters())
            assert record.peak_bytes is not None
            assert peak <= record.peak_bytes + x.nbytes + gradients + (16 << 20)  # the loss; a workspace of cuBLAS
            assert "budget" not in options or record.peak_bytes <= options["budget"]
            options = {"budget": int((budget or 1) * record.peak_bytes)}
    for other in found[1:]:
        assert all(way.agree(mine, right) for mine, right in zip(other, found[0], strict=True))


@GPU
def test_a_loss_in_groups_of_rows_on_a_gpu_is_as_exact_as_eagers() -> None:
    """Rows that are almost alike have probabilities that round alike: their errors must not add up."""
    torch.manual_seed(0)
    rows, inner, classes = 4096, 768, 50257
    weight = (0.02 * torch.randn(classes, inner, device="cuda")).requires_grad_()
    x = (torch.randn(inner, device="cuda") + 0.1 * torch.randn(rows, inner, device="cuda")).requires_grad_()
    labels = torch.randint(0, classes, (rows,), device="cuda")

    def sum_of_gradients(loss: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Any:
        x.grad = None
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.float32):
            (found,) = torch.autograd.grad(loss(x.to(dtype), weight.to(dtype), labels), x)
        return found.double().sum(0)

    def loss(x: Any, weight: Any, labels: Any) -> Any:
        return F.cross_entropy(F.linear(x, weight), labels)

    exact, eager = sum_of_gradients(loss, torch.float64), sum_of_gradients(loss)
    ours = sum_of_gradients(torch.compile(loss, backend="sublet", options={"losses": "rows"}))
    assert sublet.torch.report()[-1].losses == 1
    assert (ours - exact).norm() <= 2 * (eager - exact).norm()


@GPU
@pytest.mark.filterwarnings("ignore")
def test_the_estimate_for_a_gpu_is_the_peak_of_the_allocator() -> None:
    module = nn.Sequential(
        *[each for _ in range(12) for each in (nn.Linear(1024, 1024), nn.GELU())], nn.Linear(1024, 10)
    )
    module = module.to("cuda")
    x, labels = torch.randn(8192, 1024, device="cuda"), torch.randint(0, 10, (8192,), device="cuda")
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        F.cross_entropy(module(x), labels).backward()
        optimizer.step()
    measured = torch.cuda.max_memory_allocated()
    found = sublet.torch.estimate(module, F.cross_entropy, optimizer, x, (labels,))
    assert found.eager.peak_bytes == pytest.approx(measured, rel=0.03)
    assert found.sublet is not None
    torch.compile(
        lambda x, labels: F.cross_entropy(module(x), labels), backend="sublet", options={"kernels": "sublet"}
    )(x, labels).backward()
    plan = sublet.torch.report()[-1].plan
    assert plan is not None
    assert found.sublet.arena_bytes == plan.arena_bytes


def _within(budget: int | None) -> Callable[[Any, Any], Any]:
    return lambda graph, example: compile_region(OnDevice(budget=budget), graph, example)


@pytest.mark.parametrize(
    ("device", "compiled"),
    [
        pytest.param("cpu", lambda f, budget: torch.compile(f, backend=_within(budget)), id="as on a device"),
        pytest.param("cuda", lambda f, budget: _sublet(budget=budget, kernels="sublet")(f), id="CUDA", marks=GPU),
    ],
)
def test_a_budget_recomputes_values_on_a_device(device: str, compiled: Callable[[Any, int | None], Any]) -> None:
    layers = [(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2)) for _ in range(6)]
    network = nn.Sequential(*[each for layer in layers for each in layer]).to(device)
    x, way, states, arenas = torch.randn(256, 64, device=device), Way(device, _sublet()), [], []
    for share in (None, 1.0, 0.75):
        module = copy.deepcopy(network)
        torch._dynamo.reset()
        run = module if share is None else compiled(module, int(share * arenas[0]) if arenas else None)
        torch.manual_seed(5)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
        states.append([*module.state_dict().values(), way.drawn()])
        if share is not None:
            plan = sublet.torch.report()[-1].plan
            assert plan is not None
            arenas.append(plan.arena_bytes)
    assert arenas[1] <= 0.75 * arenas[0]
    assert all(way.agree(mine, right) for mine, right in zip(states[2], states[1], strict=True))
    for mine, right in zip(states[2], states[0], strict=True):  # batch norms round otherwise on the CPU
        assert torch.allclose(mine.double(), right.double(), rtol=1e-3, atol=1e-5)


@EACH
def test_calls_in_flight_have_arenas_of_their_own(way: Way) -> None:
    """Forwards whose backwards come later, in any order, or never; results of earlier calls stay what they are."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid()).to(way.device)
    run, before = way.compile(module), _alive(DeviceArena)
    xs = [torch.randn(3, 6, device=way.device, requires_grad=True) for _ in range(4)]
    wanted = [torch.autograd.grad(module(x).sum(), x)[0] for x in xs]
    for _ in range(3):
        results = [run(x) for x in xs]
        for i in (2, 0, 3, 1):
            assert way.agree(torch.autograd.grad(results[i].sum(), xs[i])[0], wanted[i])
        for x, result in zip(xs, results, strict=True):
            assert way.agree(result, module(x))
    del results
    for _ in range(20):
        run(xs[0])  # dropped: its arena is given back
    assert _alive(DeviceArena) - before == len(xs)  # as many as were in flight at once


def _alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(each), kind) for each in gc.get_objects())


def _swapped(x: Any, y: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        return i + 1, b.sin(), (a + b).clone()

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch._higher_order_ops.while_loop(lambda i, a, b: i < 5, body, (start, x, y))


def _scanned(x: Any, y: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        new = torch.tanh(carry + row)
        return new, new * 2

    return torch._higher_order_ops.scan(step, x[0], y)


def _branched(x: Any, y: Any) -> Any:
    x = torch.cond(x.sum() > 0, lambda x, y: x.sin() * y, lambda x, y: x - y.t().t(), (x, y))
    return torch.cond(x.mean() > 1, lambda x: x * 3, lambda x: x.cos(), (x,))


@EACH
@pytest.mark.parametrize(
    ("program", "shape"), [(_swapped, (4, 6)), (_scanned, (4, 6)), (_scanned, (3, 1 << 16)), (_branched, (4, 6))]
)
def test_branches_and_loops(program: Callable[..., Any], shape: tuple[int, int], way: Way) -> None:
    """Large rows of a scan lie in their whole, elsewhere in each round."""
    run, before = way.compile(program), Tape.replays
    with torch.no_grad():
        for factor in (1.0, -1.0, 3.0, 1.0, -1.0, 3.0):
            x, y = (factor * torch.rand(shape)).to(way.device), torch.randn(shape).to(way.device)
            for mine, right in zip(run(x, y), program(x, y), strict=True):
                assert way.agree(mine, right)
    assert sublet.torch.report()[-1].plan is not None
    assert (Tape.replays > before) == (way.records and way.device == "cpu")


def test_a_loop_that_carries_by_turns_is_recorded_once_a_copy_of_its_body() -> None:
    """Nothing is copied from round to round: two carries that change places are a body in two copies."""
    run = torch.compile(_swapped, backend=recorded)
    with torch.no_grad():
        for _ in range(2):
            run(torch.randn(4, 6), torch.randn(4, 6))
        before = Tape.records
        run(torch.randn(4, 6), torch.randn(4, 6))
    (rolled,) = sublet.torch.report()[-1].plan.rolled
    assert rolled.copies > 1
    assert Tape.records == before  # all copies have been


@EACH
def test_weights_are_used_where_they_are_now(way: Way) -> None:
    module = nn.Linear(6, 4).to(way.device)
    run, x = way.compile(module), torch.randn(3, 6, device=way.device)
    with torch.no_grad():
        for _ in range(3):
            assert way.agree(run(x), module(x))
        for elsewhere in (torch.randn(6, 4).t(), torch.randn(40)[5:29].view(4, 6)):
            module.weight.data = elsewhere.to(way.device)
            for _ in range(3):
                assert way.agree(run(x), module(x))


def test_without_bytes_there_are_plans_shapes_and_strides() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(30752, 4))
    module.to(device="meta", memory_format=torch.channels_last)
    x = torch.empty(2, 3, 64, 64, device="meta", requires_grad=True)
    run = torch.compile(module, backend="sublet")
    sides = []
    for function in (run, module):
        module.zero_grad()
        x.grad = None
        y = function(x)
        y.sum().backward()
        sides.append([(each.shape, each.stride(), each.device) for each in (y, x.grad, module[0].weight.grad)])
    assert sides[0] == sides[1]
    told = sublet.torch.report()[-1]
    assert told.name == "forward and backward on meta"
    assert told.plan is not None
    assert told.plan.arena_bytes > 0


def test_there_are_plans_for_cuda_without_cuda() -> None:
    """The device is a fact of nodes; a softmax by rows, and what nobody ran there, lies over nothing."""

    def function(x: Any, w: Any) -> Any:
        y = torch.where(x > 0, x @ w, 1.5)
        return [(y.softmax(-1) + torch.arange(6, device=x.device)).relu(), torch.rand(3, device=x.device)]

    with FakeTensorMode(), torch.no_grad():
        graph = make_fx(function)(torch.empty(4, 6, device="cuda"), torch.empty(6, 6, device="cuda"))
    device = device_of(graph)
    captured = capture_program(graph, None, (1,), {}, device, runs_on=device)
    plan = sublet.plan_memory(captured.model)
    assert {node.attrs[DEVICE] for node in captured.model.graph.nodes if node.op != COPY_OUT} == {"cuda:0"}
    assert plan.arena_bytes > 0


def _flash(q: Any, k: Any, v: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]


def _efficient(q: Any, k: Any, v: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0]


def _dropping(q: Any, k: Any, v: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.5)[0]


@pytest.mark.parametrize("attention", [_flash, _efficient, _dropping])
def test_attention_of_devices_gives_numbers_and_seeds(attention: Callable[..., Any]) -> None:
    """Its results are numbers too, and seeds, which lie where tracing does not tell; none are read without dropout."""
    q, k, v = (torch.empty(2, 4, 16, 32, device="meta", requires_grad=True) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.compile(attention, backend="sublet")(q, k, v).sum().backward()
    assert q.grad.stride() == q.stride()
    told = sublet.torch.report()[-1]
    assert (told.plan is None) == (attention is _dropping)
    assert (
        attention is not _dropping
        or "with dropout: the device of its seed depends on CUDA graph capture" in told.reason
    )


def test_only_graphs_on_one_device_are_planned() -> None:
    """Results lie where they lie eagerly; a number that is made on the CPU may be anywhere."""
    run = torch.compile(lambda x: (x + 1, torch.ones(3, device="meta") * 2), backend="sublet")
    with pytest.warns(UserWarning, match="a tensor on meta in a graph on cpu: only graphs on one device are planned"):
        found = run(torch.randn(3))
    assert [str(each.device) for each in found] == ["cpu", "meta"]
    x = torch.empty(3, device="meta")
    assert str(torch.compile(lambda x: torch.where(x > 0, x, 1.5), backend="sublet")(x).device) == "meta"
    assert sublet.torch.report()[-1].plan is not None


def test_another_default_device_changes_nothing_on_the_cpu() -> None:
    module = nn.Sequential(nn.EmbeddingBag(9, 200), nn.Linear(200, 200))
    words, x = torch.randint(0, 9, (64, 5)), torch.randn(64, 200)
    optimizer = torch.optim.Adam(module.parameters())
    step = sublet.torch.train_step(module, lambda y, x: ((y - x) ** 2).mean(), optimizer)
    right = module(words)
    with torch.device("meta"):
        found = torch.compile(module, backend="sublet")(words)
        found.sum().backward()
        loss = step(words, x)
    assert torch.allclose(found, right, rtol=1e-5, atol=1e-5)
    assert str(loss.device) == "cpu"
    assert sublet.torch.report()[-1].plan is not None


def test_what_is_not_on_a_device_is_told() -> None:
    x = torch.empty(2, 3, device="meta")
    module = nn.Linear(3, 3, device="meta")
    step = sublet.torch.train_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(ModelError, match=r"train_step runs on the CPU, and here are tensors on meta.*torch\.compile"):
        step(x, x)
    with pytest.raises(SubletError, match="there are graphs on CUDA, and these tensors are on meta"):
        torch.compile(module, backend="sublet", options={"graphs": True})(x)


def test_what_pytorch_lays_out_otherwise_is_computed_apart() -> None:
    """As the result of `max_unpool2d` of channels that lie last; but not over what it is computed of."""
    x = torch.randn(2, 3, 4, 4)
    maxima, indices = F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2, return_indices=True)
    place, aten = torch.zeros(2, 3, 4, 4), torch.ops.aten
    node, args = Node("n", "aten.max_unpool2d.default", (), ()), (maxima, indices, [4, 4])
    apart = _AllocatingCall(lambda: aten.max_unpool2d(*args), [place])
    call = _VerifiedCall(node, "max_unpool2d.out", [place], args, {}, apart)
    for _ in range(2):
        place.fill_(9)
        call()
        assert torch.equal(place, aten.max_unpool2d(*args))
    wrong = _VerifiedCall(node, "max_unpool2d.out", [place], args, {"also": place}, apart)
    with pytest.raises(RunError, match="PyTorch did not write where it was told"):
        wrong()
    with pytest.raises(RunError, match="gives a tensor"):
        _AllocatingCall(lambda: torch.zeros(2, 3, 4, 1), [place])()


def test_a_result_lies_over_an_operand_with_other_steps_of_single_elements() -> None:
    """PyTorch compares these too where both are of one memory, and refuses."""

    def function(x: Any, y: Any) -> Any:
        return torch.sub(x.sum(1)[None].t(), y, alpha=0.5).sin()  # [4, 1], steps (1, 4)

    x, y = torch.randn(4, 6), torch.randn(4, 1)
    with torch.no_grad():
        assert torch.equal(torch.compile(function, backend=backend)(x, y), function(x, y))


def test_bytes_are_copied_to_where_they_partly_lie() -> None:
    whole = torch.arange(12)
    copy_elements(whole[:8], whole[4:])
    assert whole.tolist() == [0, 1, 2, 3, *range(8)]


def test_what_overwrites_is_element_by_element_but_for_what_goes_by_rows() -> None:
    """So results may lie over operands on every device; those that go by rows lie apart there."""
    overwriting = [name for name, known in facts_by_name().items() if known.overwrites and name not in ROW_BY_ROW]
    for name in overwriting:
        packet, _, overload = name.partition(".")
        assert torch.Tag.pointwise in getattr(getattr(torch.ops.aten, packet), overload).tags, name
    assert len(overwriting) > 200
    arenas = []
    for how in ("sublet", backend):
        with torch.no_grad():
            torch.compile(lambda x: (x * 2).softmax(-1) + 1, backend=how)(torch.randn(64, 64))
        arenas.append(sublet.torch.report()[-1].plan.arena_bytes)
        torch._dynamo.reset()
    assert arenas == [64 * 64 * 4, 2 * 64 * 64 * 4]
