"""Tests of losses over a vocabulary in groups of rows, with kernels of Sublet."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import sublet  # noqa: E402
from sublet.base.errors import ModelError  # noqa: E402
from sublet.integrations.torch.compile import loss_rows  # noqa: E402
from sublet.integrations.torch.compile.arena_pool import ArenaPool  # noqa: E402
from sublet.integrations.torch.compile.compile_report import report  # noqa: E402
from sublet.integrations.torch.compile.joint_graph import capture_program  # noqa: E402
from sublet.integrations.torch.dialect import LINEAR_LOSS  # noqa: E402
from sublet.ops.op import lookup  # noqa: E402
from tests.integrations.torch.judged import run_poisoned  # noqa: E402

F = nn.functional
ROWS, INNER, CLASSES = 300, 24, 700


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_rows, "PLANNED_GROUP_BYTES", 1 << 17)


class Head(nn.Module):
    """Two layers and a loss over a vocabulary, written in several ways."""

    def __init__(self, way: str = "mean", bias: bool = True) -> None:
        super().__init__()
        self.body, self.head, self.way = nn.Linear(INNER, INNER), nn.Linear(INNER, CLASSES, bias=bias), way

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.head(F.gelu(self.body(x)))
        match self.way:
            case "sum":
                return F.cross_entropy(logits, labels, reduction="sum")
            case "scaled":
                return 3 * F.cross_entropy(logits, labels, ignore_index=7)
            case "shifted":
                return F.cross_entropy(logits[:-1], labels[1:])
            case "smooth":
                return F.cross_entropy(logits, labels, label_smoothing=0.1)
            case "read":
                return F.cross_entropy(logits, labels) + logits.mean()
            case _:
                return F.cross_entropy(logits, labels)


def rows_and_labels() -> tuple[Any, Any]:
    labels = torch.randint(0, CLASSES, (ROWS,))
    labels[::3] = 7
    return torch.randn(ROWS, INNER), labels


def gradients(module: Any, run: Any, given: Any) -> list[Any]:
    module.zero_grad()
    loss = run(*given)
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in module.parameters() if each.grad is not None)]


def compiled(module: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="sublet", options=options)


def merged_losses() -> int:
    return [node.op for node in report()[-1].plan.nodes].count(LINEAR_LOSS)


@pytest.mark.parametrize("way", ["mean", "sum", "scaled", "shifted"])
@pytest.mark.parametrize("bias", [False, True])
def test_losses_in_groups_of_rows_are_eagers(way: str, bias: bool) -> None:
    """Loss and gradients are at most twice as far from f64 as eager PyTorch's, in less memory."""
    module, given = Head(way, bias), rows_and_labels()
    exact = copy.deepcopy(module).double()
    true = gradients(exact, exact, (given[0].double(), given[1]))
    found = gradients(module, compiled(module), given)
    assert merged_losses() == 1
    arena = report()[-1].plan.arena_bytes
    assert "1 losses are computed in groups of rows" in str(report()[-1])
    for mine, eager, right in zip(found, gradients(module, module, given), true, strict=True):
        mine_off, eager_off = (float((each.double() - right).norm()) for each in (mine, eager))
        assert mine_off <= 2 * eager_off + 1e-6 * float(right.norm())
    gradients(module, compiled(module, losses="whole"), given)
    assert not merged_losses()
    assert arena < 0.6 * report()[-1].plan.arena_bytes


@pytest.mark.parametrize("way", ["smooth", "read"])
def test_other_losses_stay_whole(way: str) -> None:
    module = Head(way)
    gradients(module, compiled(module), rows_and_labels())
    assert not merged_losses()


def test_frozen_weights_have_no_gradient_in_the_plan() -> None:
    module, given = Head(), rows_and_labels()
    module.head.requires_grad_(False)
    found = gradients(module, compiled(module), given)
    assert merged_losses() == 1
    for mine, eager in zip(found, gradients(module, module, given), strict=True):
        assert torch.allclose(mine, eager, atol=1e-6)
    assert not any(each.value.startswith("linear_cross_entropy.2") for each in report()[-1].plan.placements)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_bounds_is_an_error(label: int) -> None:
    x, labels = rows_and_labels()
    labels[3] = label
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        compiled(Head())(x, labels)


def test_ignored_rows_are_those_of_eager() -> None:
    """Also with infinite logits, and where all rows are ignored: then the mean is no number."""
    module, (x, labels) = Head("scaled"), rows_and_labels()
    infinite = x.clone()
    infinite[0] = torch.inf  # labels[0] is ignored
    for given in ((infinite, labels), (x, torch.full_like(labels, 7))):
        pairs = zip(gradients(module, compiled(module), given), gradients(module, module, given), strict=True)
        for mine, eager in pairs:
            assert torch.allclose(mine, eager, atol=1e-5, equal_nan=True)


def test_the_loss_is_right_in_a_poisoned_arena() -> None:
    x, labels = rows_and_labels()
    operator = loss_rows.loss_operator()

    def function(x: Any, weight: Any, bias: Any, labels: Any) -> list[Any]:
        return list(operator(x * 2, weight, bias, labels, 7, True, 4))

    given = x, torch.randn(CLASSES, INNER), torch.randn(CLASSES), labels
    pool = ArenaPool(capture_program(make_fx(function)(*given), None, (), {}), given, sublet.Options())
    assert LINEAR_LOSS in [node.op for node in pool.plan.nodes]
    for mine, plain in zip(run_poisoned(pool, given), function(*given), strict=True):
        assert torch.allclose(mine, plain, atol=1e-6)


def test_an_estimate_has_the_arena_of_the_groups() -> None:
    module, (x, labels) = Head(), rows_and_labels()

    def loss(result: Any, labels: Any) -> Any:
        return F.cross_entropy(result, labels)

    layers = nn.Sequential(module.body, nn.GELU(), module.head)
    estimate = sublet.torch.estimate(layers, loss, None, x, (labels,))
    compiled(lambda: loss(layers(x), labels))().backward()
    assert merged_losses() == 1
    assert estimate.sublet is not None
    assert estimate.sublet.arena_bytes == report()[-1].plan.arena_bytes


def test_the_cost_is_that_of_three_products() -> None:
    x, labels = rows_and_labels()
    operator, weight = loss_rows.loss_operator(), torch.randn(CLASSES, INNER)

    def function(x: Any, weight: Any, labels: Any) -> list[Any]:
        return list(operator(x, weight, None, labels, 7, True, 4))

    graph = capture_program(make_fx(function)(x, weight, labels), None, (), {}).model.graph
    (node,) = [each for each in graph.nodes if each.op == LINEAR_LOSS]
    operations = lookup(node.op).operations
    assert operations is not None
    assert operations(node) == 6 * ROWS * INNER * CLASSES
    with FlopCounterMode(display=False) as counter:
        function(x, weight, labels)
    assert counter.get_total_flops() == 6 * ROWS * INNER * CLASSES


# Losses of `train_step`.

STEP_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
    "sum": lambda logits, labels: 0.01 * F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"),
    "shifted": lambda logits, labels: F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()),
    "skipped": lambda logits, labels: F.cross_entropy(logits[1:].flatten(0, 1), labels[1:].flatten(), ignore_index=7),
    "added": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.1,
}
WHOLE_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "smooth": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1),
    "returned": lambda logits, labels: (F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits),
    "read": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + logits.mean(),
    "measured": lambda logits, labels: (
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        (logits.argmax(-1) == labels).sum(),
    ),
    "columns": lambda logits, labels: F.cross_entropy(logits.transpose(1, 2), labels),
    "weighted": lambda logits, labels: F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), torch.linspace(0, 1, CLASSES, dtype=logits.dtype)
    ),
}


def language_model(bias: bool = True, tied: bool = False) -> tuple[Any, Any, Any]:
    """Return a module with logits of a vocabulary, tokens and labels."""
    torch.manual_seed(0)
    head = nn.Linear(INNER, CLASSES, bias=bias)
    module = nn.Sequential(nn.Embedding(CLASSES, INNER), nn.Linear(INNER, INNER), nn.GELU(), head)
    if tied:
        head.weight = module[0].weight
    tokens, labels = (torch.randint(0, CLASSES, (6, 50)) for _ in range(2))
    labels[:, ::3] = 7
    return module, tokens, labels


def trained(module: Any, loss: Any, given: Any, losses: str | None) -> tuple[list[Any], Any]:
    """Return the parameters after three steps of a copy of the module, and the plan; without a plan if eager."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9)
    step = None if losses is None else sublet.torch.train_step(module, loss, optimizer, losses=losses)
    for _ in range(3):
        if step is not None:
            step(*given)
            continue
        optimizer.zero_grad()
        loss(module(given[0]), given[1]).backward()
        optimizer.step()
    return [each.detach().double() for each in module.parameters()], step and step.plan


@pytest.mark.parametrize("way", STEP_LOSSES)
@pytest.mark.parametrize(("bias", "tied"), [(False, False), (True, False), (True, True)])
def test_steps_compute_losses_in_groups_of_rows(way: str, bias: bool, tied: bool) -> None:
    """Parameters are at most twice as far from f64 as eager PyTorch's, in less memory."""
    module, *given = language_model(bias, tied)
    loss = STEP_LOSSES[way]
    true, _ = trained(module.double(), loss, given, None)
    module.float()
    found, plan = trained(module, loss, given, "auto")
    assert [node.op for node in plan.nodes].count(LINEAR_LOSS) == 1
    for mine, eager, right in zip(found, trained(module, loss, given, None)[0], true, strict=True):
        mine_off, eager_off = (float((each - right).norm()) for each in (mine, eager))
        assert mine_off <= 2 * eager_off + 1e-6 * float(right.norm())
    _, whole = trained(module, loss, given, "whole")
    assert LINEAR_LOSS not in [node.op for node in whole.nodes]
    assert plan.arena_bytes < 0.7 * whole.arena_bytes


@pytest.mark.parametrize("way", WHOLE_LOSSES)
def test_other_losses_of_steps_stay_whole(way: str) -> None:
    module, tokens, labels = language_model()
    step = sublet.torch.train_step(module, WHOLE_LOSSES[way], torch.optim.SGD(module.parameters(), 0.1))
    step(tokens, labels)
    assert step.plan is not None
    assert LINEAR_LOSS not in [node.op for node in step.plan.nodes]


def test_a_scaled_step_has_the_gradients_of_the_scaled_loss() -> None:
    """The gradient of the loss is the scale, and the update divides by the scale."""
    module, tokens, labels = language_model()
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        copied = copy.deepcopy(module)
        optimizer = torch.optim.SGD(copied.parameters(), 0.5)
        step = sublet.torch.train_step(copied, STEP_LOSSES["mean"], optimizer, scaler=scaler)
        results.append((step(tokens, labels), [each.detach() for each in copied.parameters()]))
        assert step.plan is not None
        assert LINEAR_LOSS in [node.op for node in step.plan.nodes]
    torch.testing.assert_close(results[0], results[1])


def test_groups_of_a_step_become_smaller_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_rows, "MIN_GROUP_BYTES", 1 << 12)
    module, tokens, labels = language_model()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    plain = sublet.torch.train_step(module, STEP_LOSSES["mean"], optimizer)
    plain(tokens, labels)
    assert plain.plan is not None
    budget = 3 * plain.plan.arena_bytes // 4
    step = sublet.torch.train_step(module, STEP_LOSSES["mean"], optimizer, budget=budget)
    step(tokens, labels)
    assert step.plan is not None
    assert step.plan.arena_bytes <= budget
    scratch = [
        max(each.region.nbytes for each in plan.placements if each.value.endswith(".scratch"))
        for plan in (plain.plan, step.plan)
    ]
    assert scratch[1] < scratch[0]


def test_an_estimate_has_the_arena_of_the_groups_of_a_step() -> None:
    module, tokens, labels = language_model()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = sublet.torch.train_step(module, STEP_LOSSES["mean"], optimizer)
    step(tokens, labels)
    loss = STEP_LOSSES["mean"]
    estimate = sublet.torch.estimate(module, loss, optimizer, tokens, (labels,), step="train_step")
    assert step.plan is not None
    assert estimate.sublet is not None
    assert estimate.sublet.arena_bytes == step.plan.arena_bytes


def test_an_unknown_kind_of_losses_is_an_error() -> None:
    module, _, _ = language_model()
    with pytest.raises(ModelError, match="losses='rowwise': there are 'auto', 'rows', 'whole'"):
        sublet.torch.train_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), 0.1), losses="rowwise")
