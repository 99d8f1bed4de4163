"""Checkpoints and a partitioner's budget beside state and random numbers: nothing is drawn or changed a second time."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import sublet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch._functorch.config as functorch  # noqa: E402
from functorch.compile import make_boxed_func  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from sublet.integrations.torch.compile import fx_queries  # noqa: E402
from sublet.integrations.torch.compile.joint_partition import partition_joint  # noqa: E402

F = nn.functional


class Average(nn.Module):
    """A moving average of its input, which it also reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x: Any) -> Any:
        self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x + self.average


STATES = {"none": nn.Identity, "batch norm": lambda: nn.BatchNorm1d(16), "average": Average, "dropout": nn.Dropout}


def _selective() -> Any:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


HOW = {
    "plain": lambda function, x: function(x),
    "checkpoint": lambda function, x: checkpoint(function, x, use_reentrant=False),
    "reentrant": lambda function, x: checkpoint(function, x, use_reentrant=True),
    "selective": lambda function, x: checkpoint(function, x, use_reentrant=False, context_fn=_selective),
}


class Network(nn.Module):
    def __init__(self, state: str, how: str) -> None:
        super().__init__()
        self.first, self.second, self.state, self.how = nn.Linear(16, 32), nn.Linear(32, 16), STATES[state](), HOW[how]

    def inner(self, x: Any) -> Any:
        return self.state(self.second(F.gelu(self.first(x)))).tanh()

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = x + self.how(self.inner, x)
        return x


def trained(network: Any, backend: str) -> list[Any]:
    """Two steps without an optimizer: results, gradients, buffers, the generator."""
    torch._dynamo.reset()
    module = copy.deepcopy(network)
    compiled = torch.compile(module, backend=backend)
    torch.manual_seed(3)
    x = torch.randn(12, 16)
    for _ in range(2):
        y = compiled(x)
        y.square().sum().backward()
    return [y.detach(), *(each.grad for each in module.parameters()), *module.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_train_as_with_aot_eager(state: str, how: str) -> None:
    """PyTorch's own graphs of checkpoints update statistics once; eager checkpoints, twice."""
    torch.manual_seed(0)
    network = Network(state, how)
    for mine, wanted in zip(trained(network, "sublet"), trained(network, "aot_eager"), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-4, atol=1e-4)
    assert sublet.torch.report()[-1].plan is not None


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("training", [True, False])
def test_checkpoints_train_in_steps_as_eagerly_or_are_refused(state: str, how: str, training: bool) -> None:
    """Only a buffer that changes within a checkpoint is refused: the eager loop changes it twice."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(16, 16), Network(state, how)).train(training)
    module = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(each.parameters(), 0.01, momentum=0.9) for each in (eager, module)]
    step = sublet.torch.train_step(module, lambda y: y.square().mean(), optimizers[1])
    changes = state == "average" or (state == "batch norm" and training)
    x = torch.randn(3, 12, 16)
    if changes and how != "plain":
        with pytest.raises(sublet.SubletError, match=r"changes within torch\.utils\.checkpoint"):
            step(x[0])
        return
    for k, each in enumerate(x):
        torch.manual_seed(k)
        optimizers[0].zero_grad()
        wanted = eager(each).square().mean()
        wanted.backward()
        optimizers[0].step()
        drawn = torch.get_rng_state()
        torch.manual_seed(k)
        torch.testing.assert_close(step(each), wanted.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(torch.get_rng_state(), drawn)
    for mine, right in zip(module.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("budget", [0.9, 0.5, 0.0])
@pytest.mark.filterwarnings("ignore")
def test_a_budget_of_the_partitioner_changes_no_gradient(state: str, budget: float) -> None:
    torch.manual_seed(0)
    network = Network(state, "plain")
    wanted = trained(network, "aot_eager")
    with functorch.patch(activation_memory_budget=budget):
        found = trained(network, "sublet")
    for mine, right in zip(found, wanted, strict=True):
        assert torch.allclose(mine, right, rtol=1e-4, atol=1e-4)


class Scan(nn.Module):
    """A selective scan as in Mamba: each state decays by an exponential of the step's input."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.inner, self.decay = nn.Linear(width, width), nn.Parameter(torch.rand(width, states))

    def forward(self, x: Any) -> Any:
        state, results = torch.zeros(len(x), *self.decay.shape), []
        for each in self.inner(x).unbind(1):
            state = state * torch.exp(-self.decay * F.softplus(each)[..., None]) + each[..., None]
            results.append(state @ self.decay.sum(0))
        return torch.stack(results, 1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensors_that_cannot_lower_the_peak_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass is the same as with a trial of every tensor live across the peak, from far fewer trials."""
    module, x = Scan(64, 16), torch.randn(8, 12, 64)
    try_step, trials, codes = fx_queries._try_step, [0, 0], ["", ""]

    def divide(joint: Any, example: Any, **options: Any) -> Any:
        for i, may_lower in enumerate((fx_queries._FxLiveRanges.may_lower_peak, lambda *_: True)):

            def count(*arguments: Any, i: int = i) -> Any:
                trials[i] += 1
                return try_step(*arguments)

            monkeypatch.setattr(fx_queries, "_try_step", count)
            monkeypatch.setattr(fx_queries._FxLiveRanges, "may_lower_peak", may_lower)
            graphs = partition_joint(torch.fx.GraphModule(joint, copy.deepcopy(joint.graph)), example, **options)
            codes[i] = graphs[1].code
        return graphs

    compiler = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), partition_fn=divide)
    torch.compile(module, backend=compiler)(x).sum().backward()
    assert codes[0] == codes[1]
    assert 0 < 4 * trials[0] <= trials[1], trials


def in_place_convolutions() -> Any:
    """Return convolutions with batch norms, each followed by an activation in place, and a layer."""
    layers = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), kind(inplace=True)) for kind in (nn.SiLU, nn.Mish) * 3]
    return nn.Sequential(*[each for layer in layers for each in layer], nn.Flatten(), nn.Linear(4 * 24 * 24, 3))


@pytest.mark.parametrize("whole_step", [True, False])
def test_an_activation_in_place_saves_no_copy_of_its_operand(whole_step: bool) -> None:
    """Autograd saves a clone; the plan computes the operand again from the result of the convolution."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = in_place_convolutions()
    eager = copy.deepcopy(module)
    x, labels = torch.randn(8, 4, 24, 24), torch.randint(0, 3, (8,))
    F.cross_entropy(eager(x), labels).backward()
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    before = [each.detach().clone() for each in module.parameters()]
    if whole_step:
        step = sublet.torch.train_step(module, F.cross_entropy, optimizer)
        step(x, labels)
        plan = step.plan
    else:
        F.cross_entropy(torch.compile(module, backend="sublet")(x), labels).backward()
        optimizer.step()
        plan = sublet.torch.report()[-1].plan
    for found, old, right in zip(module.parameters(), before, eager.parameters(), strict=True):
        assert torch.allclose(old - found, right.grad, atol=1e-5)
    assert plan is not None
    ops = [node.op for node in plan.nodes]
    assert "aten.clone.default" not in ops
    assert ops.count("aten.silu_backward.default") == ops.count("aten.mish_backward.default") == 3
    assert plan.arena_bytes < 12 * x.nbytes  # six results of convolutions, and not also their six clones


def test_a_clone_of_a_result_is_saved_apart_from_the_result() -> None:
    """The caller may change the result between the passes."""

    class TwoResults(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            hidden = self.layer(x)
            return hidden, F.silu(hidden.clone(), inplace=True)

    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = TwoResults(), torch.randn(256, 64)
    gradients = []
    for run in (module, torch.compile(module, backend="sublet")):
        module.zero_grad()
        hidden, active = run(x)
        hidden.detach().zero_()
        active.sum().backward()
        gradients.append(module.layer.weight.grad.clone())
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)
