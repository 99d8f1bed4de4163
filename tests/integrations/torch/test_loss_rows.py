"""Tests of losses over a vocabulary in groups of rows, with kernels of Sublet."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import sublet  # noqa: E402
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
    operator = loss_rows._operator()

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
    operator, weight = loss_rows._operator(), torch.randn(CLASSES, INNER)

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
