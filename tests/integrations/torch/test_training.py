"""`sublet.torch.train_step`: steps equal to eager's, in the memory of the module and its optimizer."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from typing import Any

import pytest

import sublet
from sublet.base.errors import SubletError
from sublet.integrations.torch.train import step_setting
from sublet.integrations.torch.train.optimizers import IMPLEMENTATIONS, RULES
from sublet.integrations.torch.train.step import MAX_PLANNED_STEPS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.optim.optimizer as optimizer_module  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from tests.integrations.torch import step_grid  # noqa: E402

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


class Masked(nn.Sequential):  # type: ignore[misc]
    """A network that skips a mask without zeros, as transformers' models do; under `torch.compile` the mask stays."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(243, 32), nn.Linear(32, 5))

    def forward(self, x: Any) -> Any:
        x = self[1](self[0](x))
        x = 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))
        mask = torch.ones(x.shape[0], 1)
        return self[2](x if not torch.compiler.is_compiling() and bool(mask.all()) else x * mask)


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [(Convolutional, "momentum"), (Block, "AdamW"), (Small, "Adam"), (Small, "SGD"), (Masked, "AdamW")],
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
    with pytest.raises(SubletError, match="capturable=True"):
        sublet.torch.train_step(module, F.mse_loss, torch.optim.Adam(module.parameters(), capturable=True))
    with pytest.raises(SubletError, match="clip_norm and clip_value"):
        step_of(module, F.mse_loss, clip_norm=1.0, clip_value=1.0)
    step = sublet.torch.train_step(module, F.mse_loss, torch.optim.SGD([module.weight], 0.1))
    with pytest.raises(SubletError, match="1 parameters that require gradients are not the optimizer's"):
        step(torch.randn(4, 3), torch.randn(4, 2))
    module.weight = nn.Parameter(torch.randn(4, 6)[::2, ::2])
    step = sublet.torch.train_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(SubletError, match="does not lie in a row"):
        step(torch.randn(4, 3), torch.randn(4, 2))


def step_of(module: Any, loss: Any = F.cross_entropy, **options: Any) -> Any:
    """A step by plain gradient descent."""
    return sublet.torch.train_step(module, loss, torch.optim.SGD(module.parameters(), 0.1), **options)


def digits() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randint(0, 3, (8,))


@pytest.mark.parametrize("seed", range(30))
def test_random_loops_are_eagers_or_refused(seed: int) -> None:
    """A part of `make fuzz`, which runs 2,000 of them."""
    step_grid.judge(step_grid.drawn(seed))


SCHEDULERS = {
    **step_grid.SCHEDULERS,
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.01),
}


@pytest.mark.parametrize("name", sorted({*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"}))
def test_every_scheduler_moves_a_step_as_the_eager_loop(name: str) -> None:
    """By one plan. A PyTorch with another scheduler fails here."""
    torch.manual_seed(0)
    eager = nn.Linear(6, 3)
    module = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (eager, module)]
    step = sublet.torch.train_step(module, F.cross_entropy, optimizers[1])
    sides = [SCHEDULERS[name](each) for each in optimizers]
    plans = set()
    for _ in range(6):
        x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
        torch.testing.assert_close(step(x, labels), eager_step(eager, optimizers[0], x, labels))
        plans.add(id(step.plan))
        for scheduler in sides:
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert len(plans) == 1
    torch.testing.assert_close(module.weight, eager.weight)


def test_every_registry_of_hooks_is_known() -> None:
    """A PyTorch with another registry fails here, instead of hooks that no step calls."""
    module = set(vars(nn.Module()))
    known = {*step_setting.MODULE_HOOKS, *step_setting.MODULE_HOOKS_ELSEWHERE}
    assert {name for name in module if "hook" in name} - {"_is_full_backward_hook"} == known
    registration = {"_global_buffer_registration_hooks", "_global_module_registration_hooks"}
    registration |= {"_global_parameter_registration_hooks", "_global_is_full_backward_hook"}
    found = {name for name in vars(nn.modules.module) if name.startswith("_global_") and "hook" in name}
    assert found == {*step_setting.GLOBAL_HOOKS, *registration}
    assert {name for name in dir(torch.Tensor) if "hook" in name} - {*step_setting.TENSOR_HOOKS} == {
        "register_hook", "register_post_accumulate_grad_hook", "__subclasshook__",
    }  # fmt: skip
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    saving = {name for name in vars(optimizer) if "state_dict" in name}
    assert {name for name in vars(optimizer) if "hook" in name} - saving == {*step_setting.OPTIMIZER_HOOKS}
    shared = {name for name in vars(optimizer_module) if name.startswith("_global_") and "hook" in name}
    assert shared == {*step_setting.GLOBAL_OPTIMIZER_HOOKS}


@pytest.mark.parametrize("name", RULES)
def test_every_option_of_an_optimizer_is_known(name: str) -> None:
    """A PyTorch with another option fails here, instead of an option that no step obeys."""
    rule = RULES[name]
    options = set(inspect.signature(getattr(torch.optim, name).__init__).parameters) - {"self"}
    defaults = set(getattr(torch.optim, name)([nn.Parameter(torch.ones(1))], 0.1).defaults)
    assert options | defaults <= {*rule.numbers, *rule.flags, *rule.refused, *IMPLEMENTATIONS}


class Counting(nn.Linear):  # type: ignore[misc]
    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x)


def test_python_that_counts_calls_is_refused() -> None:
    module = Counting(6, 3)
    with pytest.raises(SubletError, match=r"network\.calls changes in forward"):
        step_of(module)(*digits())


class Own(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> Any:
        raise AssertionError("never called")


def test_an_optimizer_that_is_derived_is_refused() -> None:
    module = nn.Linear(6, 3)
    with pytest.raises(SubletError, match="no classes derived from them"):
        sublet.torch.train_step(module, F.cross_entropy, Own(module.parameters(), 0.1))


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "detect_anomaly": torch.autograd.detect_anomaly,
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_mode_that_changes_a_step_is_refused(name: str) -> None:
    module = nn.Linear(6, 3)
    step = step_of(module)
    with MODES[name](), pytest.raises(SubletError, match=name):
        step(*digits())


def test_numbers_that_move_cost_no_plan() -> None:
    module = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=20)
    step = sublet.torch.train_step(module, F.cross_entropy, optimizer)
    plans = set()
    for _ in range(6):
        step(*digits())
        schedule.step()
        plans.add(id(step.plan))
    assert len(plans) == 1


def test_plans_that_are_kept_are_bounded() -> None:
    module = nn.Linear(6, 3)
    step = step_of(module)
    for rows in range(1, MAX_PLANNED_STEPS + 5):
        step(torch.randn(rows, 6), torch.randint(0, 3, (rows,)))
    assert len(step._steps) == MAX_PLANNED_STEPS


def test_a_backward_that_was_pending_raises_as_eagerly() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    x, y = digits()
    pending = F.cross_entropy(module(x), y)
    step_of(module)(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_weights_that_share_bytes_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[1].weight.data = module[0].weight.data
    with pytest.raises(SubletError, match="share bytes"):
        step_of(module, F.mse_loss)(torch.randn(8, 6), torch.randn(8, 6))


class Settings(nn.Module):
    """Takes a dict, a keyword and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, given: Any, mode: str, *, factor: Any) -> Any:
        y = self.linear(given["x"] if mode == "x" else given["z"])
        return {"logits": y * factor, "inner": (y.t(), y)}


def test_dicts_keywords_texts_and_results() -> None:
    module = Settings()
    other = copy.deepcopy(module)
    x, y = digits()
    given = {"x": x, "z": x + 1}
    step = step_of(other, lambda out, y: {"loss": F.cross_entropy(out["logits"], y), "out": out, "n": 3})
    for mode in ("x", "z", "x"):
        result = step((given, mode), y, factor=torch.tensor(2.0))
        out = module(given, mode, factor=torch.tensor(2.0))
        loss = F.cross_entropy(out["logits"], y)
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
        assert torch.allclose(result["loss"], loss, atol=1e-6)
        assert result["n"] == 3
        assert result["out"]["inner"][0].stride() == out["inner"][0].stride()
        for mine, theirs in zip(result["out"]["inner"], out["inner"], strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(other.parameters(), module.parameters(), strict=True))


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 3).float(), pos_weight=torch.tensor([2.0])),
        lambda out, y: F.nll_loss(F.log_softmax(out, 1), y),
    ],
)
def test_a_loss_that_holds_tensors(loss: Any) -> None:
    module = nn.Linear(6, 3)
    x, y = digits()
    wanted = loss(module(x), y)
    assert torch.allclose(step_of(module, loss)(x, y), wanted, atol=1e-6)


def test_what_a_loss_closes_over_counts() -> None:
    module, factor = nn.Linear(6, 3), 1.0

    def loss(out: Any, y: Any) -> Any:
        return F.cross_entropy(out, y) * factor

    step = step_of(module, loss)
    first = step(*digits())
    factor = 0.0
    assert first > 0
    assert step(*digits()) == 0


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(16),
            nn.Linear(16, 64),
            nn.Linear(64, 16),
            nn.Dropout(0.2),
        )

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


def test_cheap_tensors_are_computed_again_in_the_backward_pass() -> None:
    """The result of a GELU needs no memory between the passes."""
    module = nn.Sequential(*[each for _ in range(8) for each in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 3))
    step = sublet.torch.train_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), 0.01))
    x = torch.randn(256, 64)
    step(x, torch.randint(0, 3, (256,)))
    assert step.plan is not None
    assert [each.op for each in step.plan.nodes].count("aten.gelu.default") == 2 * 8
    assert step.plan.arena_bytes <= 12 * x.nbytes  # 8 results of layers, and no results of 8 GELUs


def test_a_budget_is_kept_and_changes_no_bit() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(Residual() for _ in range(4)), nn.Linear(16, 3))
    x, y = torch.randn(64, 16), torch.randint(0, 3, (64,))
    losses, arenas = [], []
    for budget in (None, 0.6):
        module = copy.deepcopy(network)
        limit = None if budget is None else int(arenas[0] * budget)
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        step = sublet.torch.train_step(module, F.cross_entropy, optimizer, budget=limit)
        torch.manual_seed(1)
        losses.append([float(step(x, y)) for _ in range(3)])
        assert step.plan is not None
        arenas.append(step.plan.arena_bytes)
        assert limit is None or arenas[-1] <= limit
    assert losses[0] == losses[1]


def test_a_budget_that_is_impossible_changes_nothing() -> None:
    module = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(module.parameters())
    before = module.weight.detach().clone()
    with pytest.raises(SubletError, match="impossible"):
        sublet.torch.train_step(module, F.cross_entropy, optimizer, budget=64)(*digits())
    assert torch.equal(module.weight, before)
    assert not optimizer.state


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(6, 8, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.cells(x)[0][:, -1])


class Sum(nn.Module):
    """Its parameters have one gradient."""

    def __init__(self, _: str) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 5, 6)), nn.Parameter(torch.randn(4, 5, 6))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.last((x + self.a + self.b).mean(1))


class Tied(nn.Module):
    """Two layers with the weight of a third layer, which is not called, as in T5; and a buffer with two names."""

    def __init__(self, _: str) -> None:
        super().__init__()
        self.shared, self.first, self.second = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.first.weight = self.second.weight = self.shared.weight
        self.last = nn.Linear(6, 3)
        for each in (self.first, self.second):
            each.register_buffer("scale", torch.linspace(1, 2, 6) if each is self.first else self.first.scale)

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.first(x.to(self.shared.weight.dtype)) * self.first.scale)
        return self.last((self.second(x) * self.second.scale).mean(1))


class Shared(nn.Module):
    """Two layers and two norms that are one module each, under two names."""

    def __init__(self, _: str) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(5), nn.Linear(6, 3)
        self.second, self.other_norm = self.first, self.norm

    def forward(self, x: Any) -> Any:
        return self.last(F.gelu(self.other_norm(self.second(F.gelu(self.norm(self.first(x)))))).mean(1))


@pytest.mark.parametrize(
    ("network", "kind"),
    [(Recurrent, "LSTM"), (Recurrent, "GRU"), (Recurrent, "RNN"), (Sum, ""), (Tied, ""), (Shared, "")],
)
def test_parameters_that_have_one_gradient(network: Any, kind: str) -> None:
    """As the two biases of an LSTM; and a module that keeps lists of its parameters is planned once."""
    torch.manual_seed(0)
    module = network(kind)
    other = copy.deepcopy(module)
    sides = [(each, torch.optim.Adam(each.parameters(), 0.01)) for each in (module, other)]
    step = sublet.torch.train_step(other, F.cross_entropy, sides[1][1])
    x, labels = torch.randn(4, 5, 6), torch.randint(0, 3, (4,))
    plans = set()
    for _ in range(3):
        right = eager_step(*sides[0], x, labels)
        assert torch.allclose(step(x, labels), right, atol=1e-6)
        plans.add(id(step.plan))
    assert len(plans) == 1
    for mine, wanted in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.allclose(mine, wanted, atol=1e-5)


class Cached(nn.Linear):  # type: ignore[misc]
    """Keeps a tensor of the last call."""

    last: Any = None

    def forward(self, x: Any) -> Any:
        self.last = super().forward(x)
        return self.last


def test_a_tensor_that_forward_keeps_is_refused() -> None:
    module = Cached(6, 3)
    with pytest.raises(SubletError, match=r"network\.last changes in forward"):
        step_of(module)(*digits())
    assert module.last is None


class Attending(nn.Module):
    """A classifier over a transformer's layer, or over attention that returns its weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = (
            nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)
            if kind == "layer"
            else nn.MultiheadAttention(8, 2, 0.3, batch_first=True)
        )
        self.last = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        if isinstance(self.layer, nn.TransformerEncoderLayer):
            return self.last(self.layer(x).mean(1)).float()
        found, weights = self.layer(x, x, x, need_weights=True)
        return self.last(found.mean(1)).float() + weights.square().mean()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["layer", "weights"])
def test_attention_with_dropout_trains_within_autocast(kind: str, dtype: str) -> None:
    """AOTAutograd traces the joint graph twice: the second trace must not cast what the first one left in f32."""
    torch.manual_seed(3)
    module = Attending(kind)
    other = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (module, other)]
    step = sublet.torch.train_step(module, F.cross_entropy, optimizers[0])
    for number in range(4):
        x, labels = torch.randn(6, 5, 8), torch.randint(0, 4, (6,))
        torch.manual_seed(number)
        with torch.autocast("cpu", getattr(torch, dtype)):
            found = step(x, labels)
        states = [torch.get_rng_state()]
        torch.manual_seed(number)
        optimizers[1].zero_grad()
        with torch.autocast("cpu", getattr(torch, dtype)):
            right = F.cross_entropy(other(x), labels)
        right.backward()
        optimizers[1].step()
        states.append(torch.get_rng_state())
        assert torch.equal(*states)
        torch.testing.assert_close(found, right.detach(), atol=2e-2, rtol=2e-2)
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=2e-2, rtol=2e-2)


def test_a_refused_first_step_of_an_accumulation_leaves_no_gradients() -> None:
    module = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = sublet.torch.train_step(module, F.mse_loss, optimizer, accumulate=2, budget=100)
    with pytest.raises(SubletError):
        step(torch.randn(8, 64), torch.randn(8, 64))
    assert all(parameter.grad is None for parameter in module.parameters())


def bucketed(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Return positions in buckets, logarithmic beyond the half, as DeBERTa does."""
    middle = size // 2
    distance = torch.where(positions < middle, torch.tensor(middle - 1).type_as(positions), positions.abs())
    buckets = torch.ceil(torch.log(distance / middle) / torch.log(torch.tensor(31 / middle)) * (middle - 1)) + middle
    return torch.where(distance <= middle, positions, buckets.type_as(positions))


class Bucketed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.last = nn.Embedding(32, 8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(x + self.offsets(bucketed(torch.arange(x.shape[1]), 16))).mean(1))


def test_functions_of_torchscript_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        monkeypatch.setattr(sys.modules[__name__], "bucketed", torch.jit.script(bucketed))
    torch.manual_seed(0)
    module = Bucketed()
    other = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (module, other)]
    step = sublet.torch.train_step(other, F.cross_entropy, optimizers[1])
    for _ in range(3):
        x, labels = torch.randn(4, 24, 8), torch.randint(0, 5, (4,))
        torch.testing.assert_close(step(x, labels), eager_step(module, optimizers[0], x, labels))
    torch.testing.assert_close(list(other.parameters()), list(module.parameters()))
    assert isinstance(bucketed, torch.jit.ScriptFunction)
