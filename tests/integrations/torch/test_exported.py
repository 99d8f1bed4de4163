"""Programs of PyTorch as models: run as planned, and in a poisoned arena, they give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.base.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

F = nn.functional


def agrees(module: Any, *args: Any, more: Sequence[tuple[Any, ...]] = (), tolerance: float = 2e-6) -> Any:
    """Run a module as a model, planned and poisoned, and hold it against PyTorch; the executable.

    It is exported once, for the first arguments; `more` are others that it is run with.
    """
    model = sublet.from_torch(module, args)
    run = sublet.compile(model)
    for each in (args, *more):
        given = {name: tensor.numpy() for name, tensor in zip(model.inputs, tensors(each), strict=True)}
        with torch.no_grad():
            wanted = tensors(module(*each))
        for results in (run(given), sublet.run_poisoned(run, given)):
            assert len(results) == len(wanted)
            for result, right in zip(results.values(), wanted, strict=True):
                np.testing.assert_allclose(result, right.numpy(), rtol=tolerance, atol=tolerance, strict=True)
    return run


def tensors(found: Any) -> list[Any]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [each for inner in found for each in tensors(inner)] if isinstance(found, list | tuple) else []


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


VIEWS = {
    "transposed": lambda x: x.t() @ x,
    "expanded": lambda x: x[:1].expand(4, -1) + x,
    "pieces": lambda x: torch.relu(x[1:3]) + x[:2],
    "columns": lambda x: torch.cat([x[:, 2:] * 2, x[:, :2]], 1),
    "rows together": lambda x: torch.cat([x * 2, x + 1]),
    "every other": lambda x: x[::2, 1::3].exp(),
    "split": lambda x: [part.sum(0) for part in x.split(2, 1)],
    "unbound": lambda x: torch.stack([row * i for i, row in enumerate(x.unbind())]),
    "diagonal": lambda x: x.diagonal() + 1,
    "other type": lambda x: x.view(torch.int32) + 1,
    "folded": lambda x: x.unfold(1, 3, 2).sum(-1),
    "flipped": lambda x: x.flip(0) - x,
    "with itself": lambda x: x + x.reshape(6, 4).t().reshape(4, 6),
    "view of a view": lambda x: x.reshape(2, 2, 6).permute(2, 0, 1)[1:4].reshape(3, 4) * 3,
    "the input itself": lambda x: (x, x.t(), x),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_who_they_are_views_of(name: str) -> None:
    agrees(Of(VIEWS[name]), torch.randn(4, 6))


def test_views_of_views_take_no_bytes() -> None:
    run = agrees(Of(lambda x: (x * 2).reshape(2, 32, 8).permute(2, 0, 1).sin()), torch.randn(64, 8))
    assert run.arena_bytes == 2 * 64 * 8 * 4, "the product is overwritten by no sine that lies in another order"


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, groups=4, bias=False), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.last(F.hardswish(self.second(x)).mean((2, 3)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_image_network_in_both_layouts(layout: Any) -> None:
    module = Image().eval().to(memory_format=layout)
    x = torch.randn(2, 3, 20, 20).contiguous(memory_format=layout)
    model = sublet.from_torch(module, (x,))
    given = x if layout is torch.contiguous_format else x.permute(0, 2, 3, 1)
    run = sublet.compile(model)
    (result,) = run({model.inputs[0]: given.numpy()}).values()
    np.testing.assert_allclose(result, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert run.plan.gap == 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(x)))


def test_a_transformer_block() -> None:
    agrees(Block().eval(), torch.randn(2, 10, 16))


def test_a_branch_captures_and_takes_views() -> None:
    def chosen(x: Any, y: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a, b: b * 2 + a.t(), lambda a, b: b.sin() - a.t(), (x, y))

    agrees(Of(chosen), torch.rand(3, 4), torch.randn(4, 3), more=[(-torch.rand(3, 4), torch.randn(4, 3))])


def test_branches_one_after_another_and_in_each_other() -> None:
    def inner(x: Any) -> Any:
        return torch.cond(x.max() > 2, lambda x: x - 1, lambda x: x + 1, (x,))

    def outer(x: Any) -> Any:
        x = torch.cond(x.sum() > 0, inner, lambda x: x.cos(), (x,))
        return torch.cond(x.mean() > 1, lambda x: x * 3, inner, (x,))

    first, *more = (factor * torch.rand(8, 8) for factor in (0.1, 3.0, -1.0))
    run = agrees(Of(outer), first, more=[(x,) for x in more])
    assert not run.plan.moves


def test_a_loop_that_swaps_and_shifts_copies_nothing() -> None:
    def swapping(x: Any, y: Any, z: Any) -> Any:
        def body(i: Any, a: Any, b: Any, c: Any) -> Any:
            return i + 1, b.clone(), c.clone(), a + b

        start = torch.zeros((), dtype=torch.int64)
        return torch._higher_order_ops.while_loop(lambda i, a, b, c: i < 5, body, (start, x, y, z))

    run = agrees(Of(swapping), *(torch.randn(16, 16) for _ in range(3)))
    assert not run.plan.moves
    assert run.plan.gap == 0


def test_a_scan_stacks_rows_in_place() -> None:
    def scanned(start: Any, rows: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            new = torch.tanh(carry + row)
            return new, new * 2

        return torch._higher_order_ops.scan(step, start, rows)

    run = agrees(Of(scanned), torch.randn(16), torch.randn(12, 16))
    assert all("it has fewer than 262,144 bytes, and a copy costs less" in move.why for move in run.plan.moves)
    assert not sublet.plan_memory(sublet.from_torch(Of(scanned), (torch.randn(1 << 16), torch.randn(3, 1 << 16)))).moves


def test_buffers_that_a_run_changes_are_updated() -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)).train()
    model = sublet.from_torch(module, (torch.randn(3, 2, 5, 5),))
    run = sublet.compile(model)
    for _ in range(3):
        x = torch.randn(3, 2, 5, 5)
        (result,) = run({model.inputs[0]: x.numpy()}).values()
        np.testing.assert_allclose(result, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(run.state(name), buffer.numpy(), rtol=1e-6, atol=1e-7, err_msg=name)


def test_weights_are_the_modules_own_memory() -> None:
    module = nn.Linear(64, 64).eval()
    model = sublet.from_torch(module, (torch.randn(2, 64),))
    assert model.weights["weight"].array().ctypes.data == module.weight.data_ptr()


def test_the_generator_is_pytorchs() -> None:
    model = sublet.from_torch(Of(lambda x: x + torch.rand_like(x)), (torch.zeros(100),))
    run = sublet.compile(model)
    torch.manual_seed(7)
    (result,) = run({model.inputs[0]: torch.zeros(100)}).values()
    torch.manual_seed(7)
    assert np.array_equal(result, torch.rand(100).numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8])
def test_types_of_elements(dtype: Any) -> None:
    x = (torch.rand(6, 6) * 5).to(dtype)
    module = Of(lambda x: (x * 2 + x.t()).clamp(1, 7))
    model = sublet.from_torch(module, (x,))
    run = sublet.compile(model)
    (result,) = run({model.inputs[0]: x}).values()
    assert np.array_equal(np.asarray(result, np.float64), module(x).double().numpy())


BAD = {
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)), "complex64"),
    "only a run knows": (lambda x: x[: int(x.sum())], "torch.export refuses it"),
    "positions": (lambda x: x.nonzero(), "depends on the inputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_planned_is_told_by_its_line(name: str) -> None:
    function, words = BAD[name]
    with pytest.raises(ModelError, match=words):
        sublet.from_torch(Of(function), (torch.randn(8),))


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ModelError, match="is no network of PyTorch"):
        sublet.from_torch(lambda x: x, (torch.randn(8),))
    with pytest.raises(ModelError, match="as a tuple"):
        sublet.from_torch(nn.ReLU(), torch.randn(8))  # type: ignore[arg-type]


class Holding(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, x: Any) -> Any:
        return x + self.held


@pytest.mark.parametrize(
    "held",
    [
        torch.arange(96.0).view(8, 12)[:, ::2].t(),
        torch.arange(8.0).expand(6, 8),
        torch.arange(6.0).view(6, 1).expand(6, 8),
        torch.arange(48.0).view(8, 6).t(),
        torch.arange(144.0).view(3, 8, 6).transpose(1, 2)[1],
        torch.tensor(2.0),
    ],
    ids=["gaps", "repeated rows", "repeated columns", "turned", "part", "number"],
)
def test_what_a_module_holds_may_lie_in_any_way(held: Any) -> None:
    x = torch.randn(6, 8)
    model = sublet.from_torch(Holding(held), (x,))
    (found,) = sublet.compile(model)({model.inputs[0]: x}).values()
    np.testing.assert_array_equal(found, (x + held).numpy())
