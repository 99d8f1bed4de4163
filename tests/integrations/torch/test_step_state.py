"""State that a module's Python code reads and changes: a step does what the eager loop does, or refuses before it.

A refusal leaves module, optimizer, arguments and caches as they were.
"""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.base.errors import SubletError

torch = pytest.importorskip("torch")
nn = torch.nn

Change = Callable[[Any, str], object]


def new(module: Any, name: str) -> Any:
    return getattr(module, name).detach() * 0.9 + 0.01


@torch.no_grad()
def write(module: Any, name: str) -> None:
    getattr(module, name).copy_(new(module, name))


@torch.no_grad()
def set_memory(module: Any, name: str) -> None:
    getattr(module, name).set_(new(module, name))


def fork(module: Any, name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.rand(4)


CHANGES: dict[str, Change] = {
    "assign": lambda m, name: setattr(m, name, new(m, name)),
    "assign a parameter": lambda m, name: setattr(m, name, nn.Parameter(new(m, name))),
    "assign the data": lambda m, name: setattr(getattr(m, name), "data", new(m, name)),
    "write into the data": lambda m, name: getattr(m, name).data.mul_(0.9),
    "write an element": lambda m, name: getattr(m, name).data.__setitem__(0, 0.5),
    "write": write,
    "write into a detached tensor": lambda m, name: getattr(m, name).detach().mul_(0.9),
    "set the memory": set_memory,
    "register a buffer": lambda m, name: m.register_buffer(name, new(m, name)),
    "assign in the registry": lambda m, name: m._buffers.__setitem__(name, new(m, name)),
    "delete and assign": lambda m, name: (value := new(m, name), delattr(m, name), setattr(m, name, value)),
    "swap": lambda m, name: m._buffers.update(one=m._buffers["two"], two=m._buffers["one"]),
    "freeze": lambda m, name: getattr(m, name).requires_grad_(False),
    "add a module": lambda m, name: m.add_module("extra", nn.Identity()),
    "replace a statistic": lambda m, name: setattr(m.norm, "running_mean", m.norm.running_mean * 0.5),
    "attribute of a class": lambda m, name: setattr(type(m), "count", type(m).count + 1),
    "attribute of a module": lambda m, name: setattr(m.layer, "note", 1),
    "append": lambda m, name: m.numbers.append(1),
    "tensor in a list": lambda m, name: m.numbers.__setitem__(0, new(m, name)),
    "attribute of an object": lambda m, name: setattr(m.config, "scale", m.config.scale + 1),
    "tensor of an object": lambda m, name: setattr(m.config, "tensor", torch.ones(4)),
    "write into a plain tensor": lambda m, name: m.plain.mul_(0.9),
    "assign a plain tensor": lambda m, name: setattr(m, "plain", m.plain * 0.9),
    "set a gradient": lambda m, name: setattr(m.weight, "grad", torch.ones(4)),
    "set the seed": lambda m, name: torch.manual_seed(3),
    "fork the generator": fork,
    "set the generator": lambda m, name: torch.set_rng_state(torch.get_rng_state()),
    "draw by Python": lambda m, name: random.random(),
    "draw by NumPy": lambda m, name: np.random.rand(),
}


class Changing(nn.Module):  # type: ignore[misc]
    """A layer whose forward pass changes state before or after the computation."""

    count = 0

    def __init__(self, change: str, name: str, when: str) -> None:
        super().__init__()
        self.layer, self.norm, self.weight = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Parameter(torch.rand(4))
        self.register_buffer("one", torch.rand(4))
        self.register_buffer("two", torch.rand(4))
        self.plain, self.numbers, self.config = torch.ones(4), [0], SimpleNamespace(scale=1.0, tensor=None)
        self.change, self.name, self.when = change, name, when

    def forward(self, x: Any) -> Any:
        if self.when == "before":
            CHANGES[self.change](self, self.name)
        y = self.norm(self.layer(x)) * self.weight + self.one * 2 + self.two + self.plain * self.config.scale
        y = nn.functional.dropout(y + type(self).count, 0.3, self.training)
        if self.when == "after":
            CHANGES[self.change](self, self.name)
        return y.square().sum()


def contents(module: Any) -> dict[str, Any]:
    registered = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: each.detach().clone() for name, each in {**registered, "plain": module.plain}.items()}


def run_steps(module: Any, step: Callable[[Any], Any]) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    return [step(torch.randn(3, 4, generator=generator)).item() for _ in range(3)]


def train_eagerly(module: Any) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        return loss

    return run_steps(module, step)


def step_of(module: Any, loss: Any = lambda y: y) -> Any:
    return sublet.torch.train_step(module, loss, torch.optim.SGD(module.parameters(), 0.01, momentum=0.9))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["one", "weight"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_forward_is_followed_or_refused(change: str, name: str, when: str) -> None:
    torch.manual_seed(0)
    module = Changing(change, name, when)
    eager = copy.deepcopy(module)
    before, same = contents(module), {key: id(each) for key, each in module.named_parameters()}
    generators = random.getstate(), np.random.get_state()
    Changing.count = 0
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    try:
        losses = run_steps(module, step_of(module))
    except SubletError:
        assert torch.equal(torch.get_rng_state(), drawn)
        after = contents(module)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert same == {key: id(each) for key, each in module.named_parameters()}
        assert (module.numbers, module.config, Changing.count) == ([0], SimpleNamespace(scale=1.0, tensor=None), 0)
        assert random.getstate() == generators[0]
        assert all(map(np.array_equal, np.random.get_state(), generators[1]))
        return
    torch.manual_seed(5)
    np.testing.assert_allclose(losses, train_eagerly(eager), rtol=1e-5)
    wanted, found = contents(eager), contents(module)
    assert wanted.keys() == found.keys()
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-4, atol=1e-5)


def test_an_object_of_settings_is_part_of_the_key() -> None:
    """Settings often lie in an object that many modules share, and change between steps."""
    module = Changing("write", "one", "never").eval()
    eager, step = copy.deepcopy(module), step_of(module)
    optimizer = torch.optim.SGD(eager.parameters(), 0.01, momentum=0.9)
    for scale in (1.0, 2.0, 0.5, 1.0):
        module.config.scale = eager.config.scale = scale
        x = torch.randn(3, 4)
        optimizer.zero_grad()
        wanted = eager(x)
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(step(x), wanted.detach(), rtol=1e-5, atol=1e-5)


def test_an_attribute_that_changes_at_each_step_is_named_in_one_warning() -> None:
    module = Changing("write", "one", "never")
    step, texts = step_of(module), []
    for scale in range(7):
        module.config.scale = float(scale)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step(torch.ones(3, 4))
        texts += [str(each.message) for each in found]
    assert len(texts) == 1
    assert "a training step for each new value of network.config" in texts[0]


class Slotted:
    __slots__ = ("scale",)


def test_slots_of_an_object_are_part_of_the_key() -> None:
    module = Changing("write", "one", "never").eval()
    module.config = Slotted()
    step, losses = step_of(module), []
    for module.config.scale in (1.0, 5.0):
        losses.append(float(step(torch.ones(3, 4))))
    assert losses[1] > 2 * losses[0]


class Scaled:
    scale = 1.0

    def __init__(self) -> None:
        self.scale = 1.0

    def loss(self, y: Any) -> Any:
        return y * self.scale

    __call__ = loss


@pytest.mark.parametrize("kind", ["method", "object"])
def test_the_object_of_a_loss_is_part_of_the_key(kind: str) -> None:
    scaled = Scaled()
    step = step_of(Changing("write", "one", "never").eval(), scaled.loss if kind == "method" else scaled)
    step.optimizer = None
    first = [step(torch.ones(3, 4)) for scaled.scale in (1.0,)]
    scaled.scale = 0.0
    assert float(first[0]) > 0
    assert float(step(torch.ones(3, 4))) == 0


class Lazy(nn.Module):  # type: ignore[misc]
    """A layer with a table made at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), None

    def forward(self, x: Any) -> Any:
        self.table = torch.arange(4.0) if self.table is None else self.table
        return (self.layer(x) * self.table).sum()


def test_a_table_made_at_the_first_call_is_refused_until_it_is_there() -> None:
    module = Lazy()
    step = step_of(module)
    with pytest.raises(SubletError, match=r"network\.table changes in forward.*call the module once before"):
        step(torch.ones(2, 4))
    assert module.table is None
    wanted = module(torch.ones(2, 4)).detach()
    torch.testing.assert_close(step(torch.ones(2, 4)), wanted)
    module.table.mul_(0)
    assert float(step(torch.ones(2, 4))) == 0  # the memory of the table is read at each step
    module.table = torch.ones(4)
    assert float(step(torch.ones(2, 4))) != 0


@lru_cache(None)
def table(count: int) -> Any:
    return torch.arange(float(count))


@lru_cache(maxsize=4)
def tables(count: int) -> tuple[Any, ...]:
    return torch.arange(float(count)), 1


class Memoized(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return (super().forward(x) * table(4) * tables(4)[0]).sum()


@pytest.mark.parametrize("door", ["train_step", "estimate"])
def test_no_cache_keeps_a_tensor_of_a_trace(door: str) -> None:
    module, x = Memoized(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    table.cache_clear()
    tables.cache_clear()
    if door == "train_step":
        with pytest.raises(SubletError, match=r"test_step_state.py:\d+: .*reads a tensor that is no argument"):
            sublet.torch.train_step(module, lambda y: y, optimizer)(x)
    else:
        sublet.torch.estimate(module, lambda y: y, optimizer, x)
    assert type(module(x)) is torch.Tensor
    assert np.isfinite(module(x).item())


class Branching(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y.sum() if y.sum() > 0 else y.mean()


def test_a_number_read_from_a_tensor_is_refused_at_its_line() -> None:
    with pytest.raises(
        SubletError, match=r"test_step_state.py:\d+: return y.sum\(\) if .*reads a number from a tensor"
    ):
        step_of(Branching(4, 4))(torch.ones(2, 4))


class Writing(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any, h: Any) -> Any:
        return super().forward(h.mul_(0.5).add_(x)).sum()


def test_a_write_into_an_argument_is_refused() -> None:
    module, h = Writing(4, 4), torch.ones(2, 4)
    with pytest.raises(SubletError, match=r"writes into its argument \(tensor 2 of the call\)"):
        step_of(module)((torch.ones(2, 4), h))
    assert torch.equal(h, torch.ones(2, 4))
    with pytest.raises(SubletError, match=r"writes into its argument \(tensor 2 of the call\)"):
        step_of(nn.Linear(4, 4), lambda y, target: (y * target.add_(1)).sum())(torch.ones(2, 4), h)


class Averaging(nn.Module):  # type: ignore[misc]
    """A buffer written by a method within a checkpoint, whose owner is not called there."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = nn.Linear(4, 4), reentrant
        self.register_buffer("average", torch.zeros(4))

    def block(self, x: Any) -> Any:
        h = self.layer(x)
        self.average.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return torch.tanh(h - self.average)

    def forward(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(self.block, self.layer(x), use_reentrant=self.reentrant).sum()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_buffer_written_by_a_method_in_a_checkpoint_is_refused(reentrant: bool) -> None:
    module = Averaging(reentrant)
    with pytest.raises(SubletError, match=r"network\.average changes within torch\.utils\.checkpoint"):
        step_of(module)(torch.ones(2, 4))
    assert not module.average.any()


def test_a_plain_optimizer_gets_no_state() -> None:
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    sublet.torch.train_step(module, lambda y: y.sum(), optimizer)(torch.ones(2, 4))
    assert optimizer.state_dict()["state"] == {}


def test_a_replaced_step_of_the_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(nn.Linear(4, 4), lambda y: y.sum())
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: None)
    with pytest.raises(SubletError, match=r"SGD\.step is replaced"):
        step(torch.ones(2, 4))


def test_steps_of_several_threads_are_planned_one_after_the_other() -> None:
    """PyTorch's tracers patch the process: two at once fail, and leave a mode behind."""
    errors: list[BaseException] = []

    def train() -> None:
        try:
            step = step_of(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), lambda y: y.sum())
            for _ in range(2):
                step(torch.randn(3, 4))
        except BaseException as error:
            errors.append(error)

    for _ in range(2):
        threads = [threading.Thread(target=train) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not errors
    assert not torch.is_anomaly_enabled()
