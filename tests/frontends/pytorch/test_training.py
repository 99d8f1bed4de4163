"""`sublet.torch.train_step`: steps equal to eager's, in the memory of the module and its optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import sublet
from sublet.base.errors import SubletError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

F = nn.functional


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.next, self.last = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        return self.last(torch.relu(self.next(y)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(11, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.attend, self.project = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.up, self.down, self.last = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 11)
        self.last.weight = self.words.weight

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        b, t, _ = x.shape
        q, k, v = (each.view(b, t, 2, 8).transpose(1, 2) for each in self.attend(self.first(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(b, t, 16))
        return self.last((x + self.down(F.gelu(self.up(self.second(x))))).flatten(0, 1))


def batch(module: Any) -> tuple[Any, Any]:
    if isinstance(module, Block):
        return torch.randint(0, 11, (3, 7)), torch.randint(0, 11, (21,))
    return torch.randn(4, 3, 9, 9), torch.randint(0, 5, (4,))


OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, 0.05),
    "momentum": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda ps: torch.optim.Adam(ps, 0.01, weight_decay=0.01),
    "AdamW": lambda ps: torch.optim.AdamW(ps, 0.01, betas=(0.8, 0.95)),
}


class Small(nn.Sequential):  # type: ignore[misc]
    """One of its parameters is never read: it gets no gradient, and no update by decay either."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(243, 5))
        self.unread = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("network", "optimizer"), [(Convolutional, "momentum"), (Block, "AdamW"), (Small, "Adam"), (Small, "SGD")]
)
def test_steps_are_eagers(network: Any, optimizer: str) -> None:
    """Losses, parameters, buffers and the optimizer's state; the rate changes on the way, and eager takes over."""
    torch.manual_seed(0)
    module = network()
    other = copy.deepcopy(module)
    sides = [(each, OPTIMIZERS[optimizer](each.parameters())) for each in (module, other)]
    places = [each.data_ptr() for each in other.parameters()]
    step = sublet.torch.train_step(other, F.cross_entropy, sides[1][1])
    for number in range(5):
        x, labels = batch(module)
        for _, each in sides:
            each.param_groups[0]["lr"] = 0.02 / (1 + number)
        right = eager_step(*sides[0], x, labels)
        found = step(x, labels) if number < 4 else eager_step(*sides[1], x, labels)
        assert torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    for (name, mine), wanted in zip(other.state_dict().items(), module.state_dict().values(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-3, atol=1e-5), name
    mine, wanted = (each.state_dict()["state"] for _, each in reversed(sides))
    for number, state in wanted.items():
        for key, tensor in state.items():
            assert torch.allclose(mine[number][key], tensor, rtol=1e-3, atol=1e-5), (number, key)
    assert [each.data_ptr() for each in other.parameters()] == places
    assert step.plan is not None
    assert not step.plan.moves, "parameters are written where they are"


def eager_step(module: Any, optimizer: Any, x: Any, labels: Any) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(module(x), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def decay(module: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


def freeze(module: Any, optimizer: Any) -> None:
    module[0].weight.requires_grad_(False)
    module[1].eval()


def move(module: Any, optimizer: Any) -> None:
    module[0].weight.data = module[0].weight.data.clone()


@pytest.mark.parametrize("change", [decay, freeze, move])
def test_what_changes_between_steps_counts(change: Any) -> None:
    """Images with channels last, every other one of a batch, and dropout, whose numbers are the generator's."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.3),
                           nn.Linear(392, 5)).to(memory_format=torch.channels_last)  # fmt: skip
    other = copy.deepcopy(module)
    sides = [(each, OPTIMIZERS["momentum"](each.parameters())) for each in (module, other)]
    step = sublet.torch.train_step(other, F.cross_entropy, sides[1][1])
    for number in range(3):
        x, labels = torch.randn(8, 3, 9, 9).to(memory_format=torch.channels_last)[::2], torch.randint(0, 5, (4,))
        if number == 1:
            for side in sides:
                change(*side)
        torch.manual_seed(number)
        right = eager_step(*sides[0], x, labels)
        torch.manual_seed(number)
        assert torch.allclose(step(x, labels), right, rtol=1e-4, atol=1e-5)
    for mine, wanted in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_planned_is_told() -> None:
    module = nn.Linear(3, 2)
    with pytest.raises(SubletError, match="no optimizer that a step can be planned with; there are SGD"):
        sublet.torch.train_step(module, F.mse_loss, torch.optim.Adagrad(module.parameters()))
    with pytest.raises(SubletError, match="amsgrad=True"):
        sublet.torch.train_step(module, F.mse_loss, torch.optim.Adam(module.parameters(), amsgrad=True))
    step = sublet.torch.train_step(module, F.mse_loss, torch.optim.SGD([module.weight], 0.1))
    with pytest.raises(SubletError, match="1 parameters that require gradients are not the optimizer's"):
        step(torch.randn(4, 3), torch.randn(4, 2))
    module.weight = nn.Parameter(torch.randn(4, 6)[::2, ::2])
    step = sublet.torch.train_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(SubletError, match="does not lie in a row"):
        step(torch.randn(4, 3), torch.randn(4, 2))
