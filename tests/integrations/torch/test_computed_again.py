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
