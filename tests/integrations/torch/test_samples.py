"""An inference in parts: some samples at a time give what all at once give, in less memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sublet
from sublet.base.errors import ModelError, SubletError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sublet.integrations.torch.compile.backend import compile_region  # noqa: E402
from sublet.integrations.torch.compile.micro_batched_inference import with_smaller_batch  # noqa: E402
from sublet.integrations.torch.reader.batch_axis import BatchAxis  # noqa: E402
from tests.integrations.torch.in_turn import (  # noqa: E402
    TAKEN_FROM,
    judged,
    strided,
)
from tests.integrations.torch.on_device import OnDevice  # noqa: E402

F = nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


class Pictures(nn.Module):
    """A convolutional front, a class token, and attention with a mask for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.token = nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), torch.randn(1, 1, 16)
        self.attend, self.last = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Any, mask: Any) -> Any:
        y = F.hardswish(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(x), -1, -1), y], 1)
        numbers, places = torch.arange(len(x))[:, None], torch.arange(y.shape[1])[None]
        y, _ = self.attend(y, y, y, key_padding_mask=mask[numbers, places], need_weights=False)
        return F.log_softmax(self.last(y), -1), y.mean(1).t(), self.token * 2


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="sublet", options=options or None)


def close(found: Any, right: Any) -> None:
    for one, each in zip(found, right, strict=True):
        assert (one.shape, one.stride()) == (each.shape, each.stride())
        torch.testing.assert_close(one, each)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_give_what_all_samples_at_once_give(at_once: int, form: Any) -> None:
    module = Pictures().eval()
    mask = torch.rand(4, 50) < 0.3
    run = compiled(module, samples=at_once)
    for _ in range(2):
        x = torch.randn(4, 3, 15, 15).to(memory_format=form)
        close(run(x, mask), module(x, mask))
    told = sublet.torch.report()[-1]
    assert (told.parts, told.whole) == (4 // at_once, "")
    compiled(module, samples="all")(x, mask)
    every = sublet.torch.report()[-1]
    assert every.parts == 1
    assert told.plan is not None
    assert every.plan is not None
    assert told.plan.arena_bytes < every.plan.arena_bytes * (0.4 if at_once == 1 else 0.7)


def test_parts_on_a_device() -> None:
    module, mask, x = Pictures().eval(), torch.rand(4, 50) < 0.3, torch.randn(4, 3, 15, 15)
    run = torch.compile(module, backend=lambda graph, example: compile_region(OnDevice(samples=1), graph, example))
    close(run(x, mask), module(x, mask))
    assert sublet.torch.report()[-1].parts == 4


def test_large_tensors_are_computed_in_parts_unless_told_otherwise() -> None:
    module = nn.Sequential(nn.Linear(16, 40000), nn.ReLU(), nn.Linear(40000, 2))
    x = torch.randn(64, 16)
    close([compiled(module)(x)], [module(x)])
    told = sublet.torch.report()[-1]
    assert told.parts == 8
    assert "8 times for as many parts of the samples" in str(told)
    compiled(nn.Sequential(nn.Linear(16, 400), nn.ReLU()))(x)
    assert sublet.torch.report()[-1].parts == 1


@pytest.mark.parametrize(
    "across",
    [
        lambda x: x - x.mean(0),
        lambda x: x @ x.t(),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0),
        lambda x: x * torch.arange(4.0)[:, None],
        lambda x: x * torch.arange(len(x))[:, None],
        lambda x: x[torch.tensor([1, 0, 3, 2])],
        lambda x: x.reshape(2, 12).softmax(1),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: x.roll(1),
        lambda x: torch.cat([x, x[:2]]),
        lambda x: x.t().reshape(4, 6) * 2,
        lambda x: x.squeeze(0).argmin() + x,
    ],
)
def test_what_computes_across_samples_is_computed_at_once(across: Callable[[Any], Any]) -> None:
    x = torch.randn(4, 6)
    found, right = compiled(across, samples=1)(x), across(x)
    close(found if isinstance(found, tuple) else [found], right if isinstance(right, tuple) else [right])
    told = sublet.torch.report()[-1]
    assert told.parts == 1
    assert told.whole


def test_a_batch_that_changes() -> None:
    module = Pictures().eval()
    run = torch.compile(module, backend="sublet", dynamic=True, options={"samples": 2})
    for count in (4, 6, 3, 4):
        x, mask = torch.randn(count, 3, 15, 15), torch.rand(count, 50) < 0.3
        close(run(x, mask), module(x, mask))
    assert [told.parts for told in sublet.torch.report()[-3:]] == [2, 3, 1]


def test_an_argument_of_as_many_rows_that_is_none_of_the_samples() -> None:
    def function(x: Any, table: Any) -> Any:
        return x @ table

    x, table = torch.randn(4, 4), torch.randn(4, 4)
    close([compiled(function, samples=1)(x, table)], [x @ table])
    assert sublet.torch.report()[-1].parts == 1


def test_samples_on_another_axis_are_followed() -> None:
    def function(x: Any) -> Any:  # samples lie between other elements, and are rows of a product there
        y = x.transpose(0, 1).reshape(-1, 6)
        return (y @ torch.ones(6, 2)).reshape(5, 4, 2).transpose(0, 1).relu()

    x = torch.randn(4, 5, 6)
    close([compiled(function, samples=1)(x)], [function(x)])
    assert sublet.torch.report()[-1].parts == 4


def test_an_argument_that_is_given_back_and_one_that_all_share() -> None:
    def function(x: Any, y: Any) -> Any:
        return x, x.relu() + y, y.exp(), 3, torch.arange(len(x))

    run, x, y = compiled(function, samples=2), torch.randn(4, 6), torch.randn(6)
    same, total, shared, three, numbers = run(x, y)
    assert same is x
    assert three == 3
    assert numbers.tolist() == [0, 1, 2, 3]
    close([total, shared], [x.relu() + y, y.exp()])
    assert sublet.torch.report()[-1].parts == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.bmm(x, y.transpose(1, 2)).softmax(-1).amax(1),
        lambda x, y: torch.gather(x.view(4, -1), 1, y.view(4, -1).argsort(1)),
        lambda x, y: F.layer_norm(x + y[:, :1], (6,)).as_strided((4, 6, 5), (30, 1, 6)),
        lambda x, y: torch.cat([x, y], 1).split(3, 1)[2].unsqueeze(1).repeat(1, 2, 1, 1),
        lambda x, y: torch.where(x > 0, y, torch.zeros(4, 1, 6)).var(-1),
        lambda x, y: F.group_norm(x, 5) * torch.ones(4, 5, 1).expand(4, 5, 6) + y.permute(2, 0, 1).sum(0)[..., None],
    ],
)
def test_wherever_samples_may_lie_what_is_accepted_is_right(function: Any) -> None:
    """Extents of which some are the same by chance."""
    counts = judged(function, [torch.randn(4, 5, 6), torch.randn(4, 5, 6)], random.Random(0), "function")
    assert counts["equal"]
    assert counts["refused"]
    assert not counts["wrong"]


def test_elements_that_are_taken_by_strides() -> None:
    draw, counts = random.Random(0), Counter[str]()
    for number in range(120):
        counts += judged(strided(draw), [torch.randn(TAKEN_FROM)], draw, f"strides {number}")
    assert counts["equal"]
    assert counts["refused"]
    assert not counts["wrong"]


def test_a_graph_of_random_numbers_is_refused() -> None:
    module = make_fx(lambda x: [torch.nn.functional.dropout(x)], tracing_mode="fake")(torch.randn(4, 6))
    with pytest.raises(ModelError, match="may compute across samples"):
        with_smaller_batch(module, [BatchAxis(0)], 4, 1)


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "some"])
def test_the_option_is_checked(samples: Any) -> None:
    with pytest.raises(SubletError, match="samples="):
        sublet.torch.backend(None, [], {"samples": samples})
