"""Mixed precision and strides under `torch.compile(backend="sublet")`: types, strides and numbers are eager's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import sublet  # noqa: E402
from sublet.base.errors import SubletError  # noqa: E402
from sublet.integrations.torch.compile.joint_graph import CapturedProgram  # noqa: E402
from sublet.integrations.torch.reader import kernel_probes  # noqa: E402
from tests.integrations.torch.laid import laid  # noqa: E402
from tests.integrations.torch.mixed_grid import (  # noqa: E402
    Case,
    difference,
)

F = nn.functional
NORMS = ("BatchNorm2d", "LayerNorm", "GroupNorm", "InstanceNorm2d", "RMSNorm")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    """Start each test without compiled graphs."""
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("layer", NORMS)
@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_norms_train_within_autocast(layer: str, mode: str) -> None:
    for style, layout in (("autocast bf16", "last"), ("autocast f16", "as given")):
        assert not difference(Case(layer, style, mode, layout))


@pytest.mark.parametrize(
    "case",
    [
        Case("TransformerEncoderLayer", "autocast bf16", "training", "as given"),
        Case("BatchNorm1d", "bf16", "training", "last"),
        Case("Conv2d", "f16", "evaluation", "last"),
        Case("EmbeddingBag", "autocast f16", "training", "as given"),
        Case("Dropout", "autocast bf16", "training", "as given"),
        Case("MultiheadAttention", "f32", "inference", "last"),
        Case("TransformerEncoderLayer", "f16", "inference", "last"),
    ],
)
def test_cells_of_the_grid(case: Case) -> None:
    assert not difference(case)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(5)])
@pytest.mark.parametrize("layout", ["as given", "reversed", "last"])
def test_f32_parameters_take_bf16_images(norm: Any, layout: str) -> None:
    """The kernels keep f32 statistics of such an image, and tracing tells bf16."""
    image = laid(torch.rand(3, 4, 5, 5).bfloat16(), layout)
    found = []
    for run in (norm, torch.compile(norm, backend="sublet")):
        x = image.clone().requires_grad_()
        y = run(x)
        y.float().square().sum().backward()
        found.append((y.detach(), x.grad, norm.weight.grad.clone()))
        norm.zero_grad()
    for right, ours in zip(*found, strict=True):
        assert (ours.dtype, ours.stride()) == (right.dtype, right.stride())
        torch.testing.assert_close(ours, right, rtol=0.02, atol=0.02)


def test_a_batch_norm_lays_out_its_result_as_its_kernel_does() -> None:
    """Tracing tells the strides of the input, and the kernel gives a contiguous result; so is what is made of it."""

    def function(x: Any) -> Any:
        y = F.batch_norm(x, torch.zeros(2), torch.ones(2))
        return y, y.relu() * 2

    x = torch.rand(1, 2, 4, 4).transpose(2, 3)
    for ours, right in zip(torch.compile(function, backend="sublet")(x), function(x), strict=True):
        assert ours.stride() == right.stride()
        assert torch.equal(ours, right)
        assert ours.view(-1).shape == (32,)


@pytest.mark.parametrize("trained", [False, True])
def test_a_convolution_takes_the_layout_of_its_weights(trained: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8)
    with torch.set_grad_enabled(trained):
        ours, right = torch.compile(module, backend="sublet")(x), module(x)
    assert ours.stride() == right.stride()
    torch.testing.assert_close(ours, right)


def test_a_large_tensor_is_probed_by_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may tell of tensors of any size: a probe has at most two elements along an axis that does not matter."""
    meta = torch.empty(1 << 20, 8, 64, 64, dtype=torch.bfloat16, device="meta", memory_format=torch.channels_last)
    scale = torch.empty(8, device="meta")
    told = (meta, *(torch.empty(1 << 20, 2, dtype=torch.bfloat16, device="meta") for _ in range(2)))
    args = (meta, scale, scale, 1 << 20, 8, 64 * 64, 2, 1e-5)
    y, mean, _ = kernel_probes.probe_results(torch.ops.aten.native_group_norm.default, args, {}, told)
    assert (y.shape, y.stride(), y.dtype) == (meta.shape, meta.stride(), torch.bfloat16)
    assert (mean.shape, mean.dtype) == ((1 << 20, 2), torch.float32)
    monkeypatch.setattr(kernel_probes, "MAX_PROBE_ELEMENTS", 1)
    assert kernel_probes.probe_results(torch.ops.aten.native_group_norm.default, args, {}, told) is told


def test_a_loop_that_changes_what_it_closes_over_is_left_to_pytorch() -> None:
    def function(state: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            state.add_(1.0)
            return i + 1, x * 2

        return torch.while_loop(lambda i, x: i < 2, body, (torch.zeros((), dtype=torch.int64), torch.ones(2)))

    state = torch.ones(4)
    with torch.no_grad(), pytest.warns(UserWarning, match="leaves a graph to PyTorch: .*cannot be planned"):
        _, x = torch.compile(function, backend="sublet")(state)
    assert x.tolist() == [4, 4]
    assert state.tolist() == [3, 3, 3, 3]


def test_a_mistake_while_planning_leaves_the_graph_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *args: Any) -> None:
        raise KeyError("nobody expects it")

    monkeypatch.setattr(CapturedProgram, "__init__", fail)
    module, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    with pytest.warns(UserWarning, match="KeyError: 'nobody expects it'") as caught:
        torch.compile(module, backend="sublet")(x).sum().backward()
    assert len([each for each in caught if "leaves a graph" in str(each.message)]) == 1
    assert torch.allclose(x.grad, module.weight.sum(0).expand(2, 4))


def test_a_budget_may_be_text() -> None:
    module, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(64, 64)
    with pytest.raises(SubletError, match="an arena of 1,024 bytes is impossible"):
        torch.compile(module, backend="sublet", options={"budget": "1KiB"})(x)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(module, backend="sublet", options={"budget": "1GiB"})(x)
    for wrong, words in (("much", "'much' is not a number of bytes"), (1.5, "expected a number of bytes")):
        with pytest.raises(SubletError, match=words):
            sublet.torch.backend(None, (), {"budget": wrong})


@pytest.mark.parametrize("failing", ["_remove_aliases", "_mutated_arguments", "rematerialize_late_uses", "min_cut"])
def test_a_mistake_while_partitioning_leaves_the_partition_to_pytorch(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is planned all the same, as PyTorch partitions it."""

    def fail(*args: Any, **options: Any) -> None:
        raise KeyError("nobody expects it")

    if failing == "min_cut":
        monkeypatch.setattr("torch._functorch.partitioners.min_cut_rematerialization_partition", fail)
    else:
        monkeypatch.setattr(f"sublet.integrations.torch.compile.joint_partition.{failing}", fail)
    budget = 0.5 if failing == "_mutated_arguments" else 1.0
    module, x = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 4)), torch.randn(2, 4, requires_grad=True)
    expected = torch.autograd.grad(module(x).sum(), x)[0]
    with (
        torch._functorch.config.patch(activation_memory_budget=budget),
        pytest.warns(UserWarning, match=r"partition of graph \S+joint\S+ to PyTorch: KeyError: 'nobody") as caught,
    ):
        torch.compile(module, backend="sublet")(x).sum().backward()
    assert len([each for each in caught if "sublet leaves" in str(each.message)]) == 1
    torch.testing.assert_close(x.grad, expected)
    assert sublet.torch.report()[-1].plan is not None


def test_normal_numbers_have_the_type_that_the_kernel_gives() -> None:
    """A probe of an operator that draws leaves the generator as it is."""
    mean, deviation = torch.randn(4, 3, dtype=torch.bfloat16), torch.rand(4, 3)
    torch.manual_seed(1)
    right, state = torch.normal(mean, deviation) + 1, torch.get_rng_state()
    torch.manual_seed(1)
    found = torch.compile(lambda x, y: torch.normal(x, y) + 1, backend="sublet")(mean, deviation)
    assert found.dtype == right.dtype
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(found, right)
