"""`torch.compile(backend="sublet")`: what it gives, and its gradients, are PyTorch's; arenas for calls in flight."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

import sublet
from sublet.base.errors import SubletError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from sublet.integrations.torch.compile.arena_pool import ArenaPool, BoundArena  # noqa: E402
from sublet.integrations.torch.compile.shared_scratch import ArenaLease  # noqa: E402
from tests.integrations.torch.fuzz import judge  # noqa: E402

F = nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.attend, self.last = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(2).transpose(1, 2)
        q, k, v = self.attend(y).chunk(3, -1)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return self.last(F.gelu(y).mean(1))


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="sublet", options=options or None)


def test_training_is_equal_to_eager_training() -> None:
    module = Net()
    other = copy.deepcopy(module)
    run = compiled(other)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (module, other)]
    for _ in range(3):
        x, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        for network, optimizer in zip((module, run), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(network(x), labels).backward()
            optimizer.step()
        for (name, mine), right in zip(other.state_dict().items(), module.state_dict().values(), strict=True):
            assert torch.allclose(mine, right, rtol=1e-5, atol=1e-6), name
    last = sublet.torch.report()[-1]
    assert last.name == "forward and backward"
    assert last.plan is not None
    assert last.plan.gap == 0
    assert "operators in" in str(last)


class Normal(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, stride=2, padding=1, groups=2)
        self.norm, self.rows = nn.BatchNorm2d(6, momentum=0.3), nn.LayerNorm([6, 4])

    def forward(self, x: Any) -> Any:
        return self.rows(torch.relu(self.norm(self.conv(x))).mean(2).transpose(1, 2).reshape(-1, 6, 4))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_convolution_and_normalisation(layout: Any, dtype: Any) -> None:
    module = Normal(4).to(dtype=dtype, memory_format=layout)
    other = copy.deepcopy(module)
    x = torch.randn(2, 4, 8, 8, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    mine = x.detach().clone().requires_grad_()
    factor = torch.randn(2, 6, 4, dtype=dtype)
    (module(x) * factor).sum().backward()
    (compiled(other)(mine) * factor).sum().backward()
    rights = [x.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    founds = [mine.grad, *(p.grad for p in other.parameters()), *other.buffers()]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for right, found in zip(rights, founds, strict=True):
        assert torch.allclose(found, right, rtol=tolerance, atol=tolerance)
    assert not sublet.torch.report()[-1].copied


def test_inference_is_one_plan() -> None:
    module = Net().eval()
    with torch.no_grad():
        x = torch.randn(2, 3, 8, 8)
        assert torch.allclose(compiled(module)(x), module(x), rtol=1e-5, atol=1e-6)
    assert sublet.torch.report()[-1].name == "forward"


def alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(each), kind) for each in gc.get_objects())


def test_calls_in_flight_have_arenas_of_their_own() -> None:
    """Forwards whose backwards come later, in any order, or never."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid())
    run, before = compiled(module), alive(BoundArena)
    xs = [torch.randn(3, 6, requires_grad=True) for _ in range(4)]
    wanted = [torch.autograd.grad(module(x).sum(), x)[0] for x in xs]
    losses = [run(x).sum() for x in xs]
    for i in (2, 0, 3, 1):
        assert torch.allclose(torch.autograd.grad(losses[i], xs[i])[0], wanted[i])
    for _ in range(20):
        run(xs[0])  # dropped: its arena is given back
    gc.collect()
    assert torch.allclose(torch.autograd.grad(run(xs[1]).sum(), xs[1])[0], wanted[1])
    assert alive(BoundArena) - before == len(xs)  # as many as were in flight at once
    assert alive(ArenaLease) == 0


def test_calls_in_flight_share_what_they_do_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two programs, in threads too: each call has what it keeps, and all that run in turn have the rest."""
    monkeypatch.setattr("sublet.integrations.torch.compile.shared_scratch.MIN_SAVED_BYTES", 1)
    modules = [nn.Sequential(nn.Linear(6, n), nn.Tanh(), nn.Linear(n, n), nn.GELU()) for n in (300, 400)]
    runs = [compiled(module) for module in modules]
    x = torch.randn(30, 6)
    wanted = [torch.autograd.grad(module(x).square().sum(), [*module.parameters()]) for module in modules]

    def train() -> None:
        results = [run(x) for run in runs * 3]  # all there before the first backward
        for number in (3, 5, 0, 1, 4, 2):
            parameters = [*modules[number % 2].parameters()]
            found = torch.autograd.grad(results[number].square().sum(), parameters)
            for one, right in zip(found, wanted[number % 2], strict=True):
                assert torch.allclose(one, right, rtol=1e-4, atol=1e-5)

    train()
    train()
    plans = [each.plan for each in sublet.torch.report()[-2:]]
    arenas = [each for each in gc.get_objects() if type(each) is BoundArena and each.scratch is not None]
    assert len(arenas) == 6
    assert len({id(each.scratch) for each in arenas}) == 1
    common = arenas[0].scratch
    assert common is not None
    assert common.raw.nbytes < 3 * sum(plan.arena_bytes for plan in plans if plan is not None)
    threads = [ThreadPoolExecutor(1) for _ in range(2)]
    for done in [thread.submit(train) for thread in threads for _ in range(3)]:
        done.result()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_graphs_of_a_broken_up_model_lie_on_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scratch bytes of a graph lie in bytes saved by later graphs; a backward in another order changes nothing."""
    monkeypatch.setattr("sublet.integrations.torch.compile.shared_scratch.MIN_SAVED_BYTES", 1)
    parts = [nn.Sequential(nn.Linear(64, n), nn.Tanh(), nn.Linear(n, 64), nn.GELU()) for n in (900, 64, 64, 64)]
    runs = [compiled(part) for part in parts]
    parameters = [p for part in parts for p in part.parameters()]
    x = torch.randn(30, 64)

    def chained(calls: list[Any]) -> Any:
        y = x
        for call in calls:
            y = call(y)
        return y.square().sum()

    def first_before_last(calls: list[Any]) -> Any:
        """The backward of the first graph, while the last graphs still have saved tensors."""
        results = [call(x).square().sum() for call in calls]
        return [
            grad for part, y in zip(parts, results, strict=True) for grad in torch.autograd.grad(y, part.parameters())
        ]

    wanted, in_order = torch.autograd.grad(chained(list(parts)), parameters), first_before_last(list(parts))
    for _ in range(4):
        for right, found in zip(wanted, torch.autograd.grad(chained(runs), parameters), strict=True):
            assert torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    arenas = [each for each in gc.get_objects() if type(each) is BoundArena and each.region is not None]
    spans = sorted(each.region[1:] for each in arenas if each.region is not None and each.is_free)
    assert any(end > begin for (_, _, end), (begin, _, _) in pairwise(spans))  # scratch below saved bytes
    for _ in range(3):
        for right, found in zip(in_order, first_before_last(runs), strict=True):
            assert torch.allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("budget", [None, "1MiB"])
def test_batches_of_several_sizes_lie_in_the_bytes_of_the_largest(
    budget: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs never in flight together share all bytes; with a budget, in the unsplit arena that keeps to the budget."""
    gc.collect()  # programs of other tests
    monkeypatch.setattr("sublet.integrations.torch.compile.shared_scratch.MIN_SAVED_BYTES", 1)
    module = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 2))
    run = torch.compile(module, backend="sublet", dynamic=False, options={"budget": budget} if budget else None)
    batches = [torch.randn(count, 6) for count in (240, 200, 160)]
    wanted = [torch.autograd.grad(module(x).square().sum(), [*module.parameters()]) for x in batches]

    def train(order: tuple[int, ...]) -> None:
        """Run forward passes, and then backward passes in the same order."""
        results = [run(batches[number]).square().sum() for number in order]
        for number, result in zip(order, results, strict=True):
            found = torch.autograd.grad(result, [*module.parameters()])
            for one, right in zip(found, wanted[number], strict=True):
                assert torch.allclose(one, right, rtol=1e-4, atol=1e-4)

    def bytes_of_arenas() -> int:
        arenas = [each for each in gc.get_objects() if type(each) is BoundArena and each.plan.nodes]
        raws = [each.region.raw if each.region else each.executable.planned_memory.raw("arena") for each in arenas]
        return sum({raw.ctypes.data: raw.nbytes for raw in raws}.values())

    before, earlier = bytes_of_arenas(), len(sublet.torch.report())
    gc.disable()  # old arenas are free without the garbage collector
    try:
        for number in (0, 1, 2, 0, 1, 2):
            train((number,))
        plans = [each.plan for each in sublet.torch.report()[earlier:]]
        sizes = [plan.arena_bytes for plan in plans if plan is not None]
        assert len(sizes) == 3
        assert max(sizes) <= bytes_of_arenas() - before < 1.1 * max(sizes)
        assert budget is None or max(sizes) <= 1 << 20
    finally:
        gc.enable()
    for order in ((0, 1), (2, 1, 0), (0, 1), (1, 0, 0)):
        train(order)
    assert bytes_of_arenas() - before >= sizes[0] + sizes[1]  # in flight together


def test_what_a_function_changes_is_kept_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was computed again of the argument, which is another tensor by then."""
    monkeypatch.setattr("sublet.integrations.torch.compile.joint_partition.MIN_RECOMPUTED_BYTES", 1)
    warnings.filterwarnings("ignore", message="The .grad attribute")  # Dynamo asks for it

    def change(x: Any) -> Any:
        y = x.exp().sin()
        x.add_(1)
        return y.t() @ y

    gradients = []
    for function in (change, compiled(change)):
        leaf = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
        function(leaf * 1).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.allclose(*gradients)


def test_views_of_arguments_are_kept_as_the_arguments() -> None:
    """Those of arguments that lie otherwise the second time, too, and where nothing else is kept."""
    w, v = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)

    def both(x: Any) -> Any:
        return torch.tanh(x.view(-1)[:36].view(6, 6) @ w) @ v

    def only(x: Any) -> Any:
        return x[1:, :6].reshape(-1, 6) @ w

    for function in (both, only):
        run = compiled(function)
        for _ in range(2):
            xs = [torch.randn(8, 8) for _ in range(2)]
            results = [run(x).square().sum() for x in xs]
            for x, result in zip(xs, results, strict=True):
                right = torch.autograd.grad(function(x).square().sum(), w)[0]
                assert torch.allclose(torch.autograd.grad(result, w)[0], right, rtol=1e-4, atol=1e-5)


def test_a_graph_that_is_kept_can_be_run_backward_again() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    x = torch.randn(3, 6, requires_grad=True)
    (wanted,) = torch.autograd.grad(module(x).sum(), x)
    loss = compiled(module)(x).sum()
    for keep in (True, True, False):
        (found,) = torch.autograd.grad(loss, x, retain_graph=keep)
        assert torch.allclose(found, wanted)


class Kept(torch.autograd.Function):  # type: ignore[misc]
    """Gives back what it kept, and a view of it, as gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        kept = torch.tanh(x)
        ctx.save_for_backward(kept)
        return kept.sum() + y.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.saved_tensors[0], ctx.saved_tensors[0].t()


def test_gradients_that_are_what_was_kept_are_the_callers_own() -> None:
    def function(x: Any, y: Any) -> Any:
        return Kept.apply(x * 2, y)

    run = compiled(function)
    inputs = [(torch.randn(3, 5).requires_grad_(), torch.randn(5, 3).requires_grad_()) for _ in range(2)]
    found = [torch.autograd.grad(run(*pair), pair) for pair in inputs]
    wanted = [torch.autograd.grad(function(*pair), pair) for pair in inputs]
    for mine, right in zip(found, wanted, strict=True):
        assert all(torch.allclose(one, other) for one, other in zip(mine, right, strict=True))


@pytest.mark.parametrize("kind", ["gelu", "conv", "rows"])
def test_what_is_cheap_is_computed_again_in_the_backward(kind: str) -> None:
    """Of each layer one tensor is kept, and not two; the same gradients, also where PyTorch runs the backward."""
    layers: list[Any] = []
    for _ in range(6):
        if kind == "gelu":
            layers += [nn.Linear(64, 64), nn.GELU()]
        elif kind == "rows":
            layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Hardswish()]
        else:
            layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    module = nn.Sequential(*layers)
    other = copy.deepcopy(module)
    x = torch.randn(*((16, 8, 16, 16) if kind == "conv" else (512, 64)))
    module(x).square().sum().backward()
    loss = compiled(other)(x).square().sum()
    for keep in (True, False):
        other.zero_grad()
        loss.backward(retain_graph=keep)
        for right, found in zip(module.parameters(), other.parameters(), strict=True):
            assert torch.allclose(found.grad, right.grad, rtol=1e-3, atol=1e-3 * float(right.grad.abs().max() + 1e-2))
    plan = sublet.torch.report()[-1].plan
    assert plan is not None
    each = 4 * x.numel()
    assert plan.arena_bytes <= (6 + 4) * each if kind != "rows" else plan.arena_bytes <= (2 * 6 + 5) * each


class Stem(nn.Module):
    """A large image, of which a smaller one is made that blocks add to."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(4))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return x.square().mean()


def test_what_is_computed_again_is_not_kept_for_late_readers() -> None:
    """The blocks' gradients need the maxima of the large image early, their own gradient needs it late."""
    module = Stem()
    other, x = copy.deepcopy(module), torch.randn(4, 3, 64, 64)
    module(x).backward()
    compiled(other)(x).backward()
    for right, found in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.allclose(found.grad, right.grad, rtol=1e-3, atol=1e-3 * float(right.grad.abs().max() + 1e-2))
    plan = sublet.torch.report()[-1].plan
    assert plan is not None
    large = 4 * 4 * 8 * 64 * 64
    assert plan.arena_bytes <= 4.5 * large  # 4.9 with one for all


def test_parameters_that_move_are_used_where_they_are() -> None:
    module = nn.Linear(4, 4)
    run = compiled(module)
    x = torch.randn(2, 4)
    with torch.no_grad():
        run(x)
        module.weight.data = torch.randn(4, 4)
        assert torch.allclose(run(x), module(x))
        module.weight.mul_(2)
        assert torch.allclose(run(x), module(x))


def test_extents_that_change_are_planned_for_each_shape() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    run = torch.compile(module, backend="sublet", dynamic=True)
    before = len(sublet.torch.report())
    for rows in (4, 7, 4, 9, 7):
        x = torch.randn(rows, 6)
        (wanted,) = torch.autograd.grad(module(x.requires_grad_()).square().sum(), x)
        (found,) = torch.autograd.grad(run(x).square().sum(), x)
        assert torch.allclose(found, wanted, atol=1e-6)
    arenas = [each.plan.arena_bytes for each in sublet.torch.report()[before:] if each.plan is not None]
    assert len(arenas) == 3, "one plan a shape"
    assert arenas[0] < arenas[1] < arenas[2]


def test_a_graph_of_all_shapes_saves_what_a_graph_of_one_shape_saves() -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)))
    arenas = []
    for dynamic in (False, True):
        torch._dynamo.reset()
        run, before = torch.compile(module, backend="sublet", dynamic=dynamic), len(sublet.torch.report())
        for rows in (64, 96):
            run(torch.randn(rows, 128)).square().sum().backward()
        arenas.append([each.plan.arena_bytes for each in sublet.torch.report()[before:] if each.plan is not None])
    assert arenas[0] == arenas[1]


def test_the_generator_is_pytorchs() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    run, x = compiled(module), torch.randn(4, 8)
    torch.manual_seed(3)
    right = module(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), right)


def test_a_function_that_breaks_the_graph_and_changes_its_input() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        z = x[:, 1:] * y
        print(end="")
        return z, x.t()

    x, y = torch.randn(3, 4), torch.randn(3, 3)
    mine = x.clone()
    right, found = function(x, y), compiled(function)(mine, y)
    assert torch.equal(mine, x)
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.RMSprop])
def test_the_step_of_an_optimizer_is_planned(make: Any) -> None:
    module, before = nn.Linear(4, 3), len(sublet.torch.report())
    other = copy.deepcopy(module)
    steps = (
        torch.compile(make(module.parameters(), lr=0.1).step, backend="sublet"),
        make(other.parameters(), lr=0.1).step,
    )
    for _ in range(3):
        for network, step in zip((module, other), steps, strict=True):
            network.zero_grad()
            network(torch.ones(2, 4)).square().sum().backward()
            step()
    for found, right in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.allclose(found, right, atol=1e-6)
    assert all(each.plan is not None for each in sublet.torch.report()[before:])


def test_what_checks_a_result_is_planned_and_raises() -> None:
    """Solving asks whether it could, with an operator that gives nothing."""

    def function(a: Any, b: Any) -> Any:
        return torch.linalg.solve(a, b) + torch.linalg.inv(a) @ b

    run, b = compiled(function), torch.randn(4, 4)
    for _ in range(2):
        a = torch.randn(4, 4) + 4 * torch.eye(4)
        assert torch.equal(run(a, b), function(a, b))
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            run(torch.zeros(4, 4), b)
    assert sublet.torch.report()[-1].plan is not None


def test_what_cannot_be_planned_is_left_to_pytorch_and_told() -> None:
    def spectrum(x: Any) -> Any:
        return torch.fft.fft(x).abs() + 1

    x = torch.randn(8)
    with pytest.warns(UserWarning, match="sublet leaves a graph to PyTorch.*complex64"):
        assert torch.allclose(compiled(spectrum)(x), spectrum(x))
    assert "complex64" in str(sublet.torch.report()[-1])


@pytest.mark.parametrize(
    "given", [torch.randn(4, 4, dtype=torch.complex64), torch.eye(4).to_sparse()], ids=["complex", "sparse"]
)
def test_what_cannot_be_planned_is_one_warning_however_often_it_runs(given: Any) -> None:
    run = compiled(lambda x: x @ torch.ones(4, 2, dtype=x.dtype))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        founds = [run(given) for _ in range(3)]
    assert sum("sublet leaves" in str(each.message) for each in told) <= 1
    assert all(torch.equal(found, given @ torch.ones(4, 2, dtype=given.dtype)) for found in founds)


def test_options_are_checked_and_a_budget_is_kept() -> None:
    module, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(16, 64)
    with torch.no_grad():
        with pytest.raises(Exception, match="there are alignment, budget") as raised:
            compiled(module, speed=3)(x)
        assert isinstance(raised.value, SubletError) or "SubletError" in str(raised.value)
        with pytest.raises(SubletError, match="an arena of 100 bytes is impossible"):
            compiled(module, budget=100)(x)
        torch._dynamo.reset()
        assert torch.allclose(compiled(module, budget=1 << 20)(x), module(x))


def test_operators_run_in_an_order_of_less_memory() -> None:
    """Half of x is written first in the formula, and read last."""

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))) @ torch.ones(64, 2)

    x = torch.randn(256, 64)
    with torch.no_grad():
        results = [compiled(gelu, order=order)(x) for order in ("given", "less")]
    assert torch.allclose(results[0], gelu(x), atol=1e-5)
    assert torch.allclose(results[1], gelu(x), atol=1e-5)
    *_, given, less = (each.plan.arena_bytes for each in sublet.torch.report() if each.plan is not None)
    assert less < given


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_cross_entropy_of_probabilities(reduction: str) -> None:
    """PyTorch's own `out=` takes the place of a mean for that of all elements, and fails."""

    def loss(x: Any, y: Any) -> Any:
        return nn.functional.binary_cross_entropy(x.sigmoid(), y, reduction=reduction)

    x, y = torch.randn(5, 3), torch.rand(5, 3)
    ours, right = (x.clone().requires_grad_() for _ in range(2))
    found, wanted = compiled(loss)(ours, y), loss(right, y)
    assert torch.allclose(found, wanted)
    found.sum().backward()
    wanted.sum().backward()
    assert torch.allclose(ours.grad, right.grad)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose2d])
def test_the_bias_of_a_frozen_convolution_is_trained(kind: Any) -> None:
    """PyTorch computes the gradient of the weight as well, which nobody asked for."""
    module = kind(4, 4, 3)
    module.weight.requires_grad_(False)
    x = torch.randn(2, 9, 9, 4).transpose(1, 3) if kind is nn.ConvTranspose2d else torch.randn(2, 9, 4).transpose(1, 2)
    module(x).square().sum().backward()
    wanted, module.bias.grad = module.bias.grad, None
    compiled(module)(x).square().sum().backward()
    assert torch.allclose(module.bias.grad, wanted, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_handed_on_takes_no_place() -> None:
    """Found by the fuzz: that of `x + 1` is what comes in, and it was copied over what the forward had kept."""

    def function(a: Any, x: Any, y: Any) -> Any:
        wide = torch.cat([y, y]).sin()
        return x + 1, torch.addcmul(a, wide, wide)

    given = [torch.randn(4, 6), torch.randn(4, 6), torch.randn(2, 6)]
    ours, right = ([each.clone().requires_grad_() for each in given] for _ in range(2))
    for inputs, run in ((ours, compiled(function)), (right, function)):
        sum((each * each).sum() for each in run(*inputs)).backward()
    for found, wanted in zip(ours, right, strict=True):
        assert torch.allclose(found.grad, wanted.grad)


@pytest.mark.parametrize("seed", [*range(6), 4021, 4355])
def test_random_functions(seed: int) -> None:
    """Views, in-place operators, changed inputs, aliases, gradients; `make fuzz-torch` runs 500."""
    assert judge(seed) in ("equal", "not traced")


def test_what_is_read_transposed() -> None:
    """PyTorch's `out=` of these is wrong there, so that they are computed apart."""
    x, labels, norm = (
        torch.randn(4, 12, 20),
        torch.randint(0, 20, (4, 12)),
        nn.BatchNorm1d(5, track_running_stats=False),
    )

    def loss(x: Any) -> Any:
        return F.nll_loss(F.log_softmax(x, -1).transpose(1, 2), labels)

    def normal(y: Any) -> Any:
        return norm(y.transpose(1, 2))

    for function, given in ((loss, x), (normal, torch.randn(6, 4, 5))):
        ours, right = ([given.clone().requires_grad_()] for _ in range(2))
        found, wanted = compiled(function)(*ours), function(*right)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), ours), torch.autograd.grad(wanted.square().sum(), right)
        )


def test_an_operator_that_only_checks() -> None:
    numbers = torch.arange(8)
    assert torch.equal(compiled(lambda a: F.one_hot(a, 8))(numbers), F.one_hot(numbers, 8))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("blocks", [2, 5])
def test_blocks_that_share_a_graph_are_bound_once_each(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regional compilation: one graph, n sets of weights, n arenas; no step binds a program anew."""
    bound: list[int] = []
    bind = ArenaPool._rebind_weights

    def counting(self: ArenaPool, arena: Any, args: Any) -> None:
        bound.append(sum(args[at].data_ptr() != address for at, address in arena.weight_addresses.items()))
        bind(self, arena, args)

    monkeypatch.setattr(ArenaPool, "_rebind_weights", counting)
    modules = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(blocks)]
    compiled = [torch.compile(each, backend="sublet") for each in modules]
    for step in range(4):
        if step == 2:
            bound.clear()
        y = torch.randn(4, 8)
        for each in compiled:
            y = each(y)
        y.sum().backward()
    assert len(bound) == 2 * blocks
    assert not any(bound)


def _pools_made(monkeypatch: pytest.MonkeyPatch) -> tuple[list[ArenaPool], list[int]]:
    """Return the pools that are made from now on, and for each call how many weights it binds anew."""
    pools: list[ArenaPool] = []
    bound: list[int] = []
    made, bind = ArenaPool.__init__, ArenaPool._rebind_weights

    def making(self: ArenaPool, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        pools.append(self)

    def counting(self: ArenaPool, arena: Any, args: Any) -> None:
        bound.append(sum(args[at].data_ptr() != address for at, address in arena.weight_addresses.items()))
        bind(self, arena, args)

    monkeypatch.setattr(ArenaPool, "__init__", making)
    monkeypatch.setattr(ArenaPool, "_rebind_weights", counting)
    return pools, bound


def _spans(pool: ArenaPool) -> set[int]:
    """Return the addresses of the arenas of a pool."""
    return {arena.executable.planned_memory.raw("arena").ctypes.data for arena in pool._all}


@pytest.mark.parametrize("blocks", [2, 5])
@pytest.mark.parametrize("options", [{}, {"budget": 1 << 20}], ids=["free", "budget"])
def test_blocks_of_an_inference_are_bound_once_each_over_one_arena(
    blocks: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regional compilation: one graph, n sets of weights, n bound programs, and the bytes of one arena."""
    pools, bound = _pools_made(monkeypatch)
    modules = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval() for _ in range(blocks)]
    run = [torch.compile(each, backend="sublet", options=options) for each in modules]
    with torch.no_grad():
        for number in range(4):
            if number == 2:
                bound.clear()
            x = y = torch.randn(4, 8)
            for each, module in zip(run, modules, strict=True):
                x, y = each(x), module(y)
            torch.testing.assert_close(x, y)
    assert len(bound) == 2 * blocks
    assert not any(bound)
    (pool,) = pools
    assert len(pool._all) == blocks
    assert len(_spans(pool)) == pool.arena_count == 1


def test_weights_of_an_inference_that_move_or_are_gone_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of weights that moved is bound anew, and that of a module which is gone serves another module."""
    pools, _ = _pools_made(monkeypatch)
    x = torch.randn(4, 8)
    kept: list[Any] = []
    with torch.no_grad():
        for number in range(6):
            module = nn.Linear(8, 8)
            run = torch.compile(module, backend="sublet")
            for _ in range(3):
                module.weight.data = torch.randn(8, 8)
                assert torch.allclose(run(x), module(x))
            if number == 2:
                kept.append(module)
            del module, run
            gc.collect()
    assert sum(len(pool._all) for pool in pools) <= 2 * len(pools)


def test_bound_programs_of_an_inference_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sublet.integrations.torch.compile.arena_pool.MAX_BOUND_PROGRAMS", 3)
    pools, _ = _pools_made(monkeypatch)
    modules = [nn.Linear(8, 8) for _ in range(5)]
    run = [torch.compile(each, backend="sublet") for each in modules]
    x = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(2):
            for each, module in zip(run, modules, strict=True):
                assert torch.allclose(each(x), module(x))
    assert len(pools[0]._all) == 3


def test_threads_of_an_inference_have_arenas_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that another one overtakes between `take` and `run` must find its bytes untouched by others."""
    pools, _ = _pools_made(monkeypatch)
    modules = [nn.Linear(8, 8) for _ in range(3)]
    run = [torch.compile(each, backend="sublet") for each in modules]
    x = torch.randn(4, 8)
    with torch.no_grad():
        for each in run:
            each(x)
    (pool,) = pools
    args = [[*each.parameters(), x] for each in modules]
    flights = [pool.lease(each) for each in args[:2]]
    assert len({each.arena.executable.planned_memory.raw("arena").ctypes.data for each in flights}) == 2
    for each in flights:
        each.release()
    assert pool.arena_count == 2
