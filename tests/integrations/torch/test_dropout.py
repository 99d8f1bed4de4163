"""Tests of dropout on the CPU: the mask is saved, and the result of eager PyTorch is computed again from the mask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from sublet.integrations.torch.compile.compile_report import report  # noqa: E402
from sublet.integrations.torch.reader.tracing_rules import decompositions  # noqa: E402
from tests.integrations.torch.cases import weights_after_steps  # noqa: E402

F = torch.nn.functional
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RATES = (0.1, 0.37, 0.5, 0.99999, 1.0)


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (8, 197, 192)])
def test_the_traced_operators_have_the_bits_of_the_kernel(dtype: torch.dtype, rate: float, shape: tuple[int]) -> None:
    decompose = decompositions()[torch.ops.aten.native_dropout.default]
    x = torch.randn(shape).to(dtype)
    x.view(-1)[:3] = torch.tensor([torch.inf, torch.nan, -0.0], dtype=dtype)
    torch.manual_seed(3)
    expected, mask = torch.native_dropout(x, rate, True)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    y, kept = decompose(x, rate, True)
    assert torch.equal(kept, mask)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(bits_of(y.nan_to_num()), bits_of(expected.nan_to_num()))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(5, -1, -1, -1),
    "every second": lambda x: x[:, :, ::2],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_and_gradients_are_those_of_eager_pytorch(layout: str, dtype: torch.dtype) -> None:
    def network(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(F.dropout(LAYOUTS[layout](x), 0.3)), 0.1) * 2

    x, runs, before = torch.randn(4, 8, 6, 32, dtype=dtype), [], len(report())
    for run in (network, torch.compile(network, backend="sublet")):
        given = x.clone().requires_grad_()
        torch.manual_seed(1)
        results = [run(given) for _ in range(2)]
        (gradient,) = torch.autograd.grad(sum(each.float().square().sum() for each in results), given)
        runs.append((*results, gradient, torch.get_rng_state()))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
    assert results[0].stride() == network(x).stride()
    assert len(report()) > before
    assert not any(each.reason for each in report()[before:])


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    kinds = (lambda: torch.nn.Linear(256, 256), torch.nn.GELU, lambda: torch.nn.Dropout(0.1))
    return torch.nn.Sequential(*(kind() for _ in range(6) for kind in kinds))


@pytest.mark.parametrize("options", [{}, {"budget": "8MiB"}])
def test_masks_are_saved_instead_of_results(options: dict[str, str]) -> None:
    """Six layers save 6 inputs of GELU of 1 MiB, and 6 masks of 0.25 MiB. A budget saves less."""
    x, losses = torch.randn(1024, 256), []
    for compiled in (False, True):
        module = layers()
        run = torch.compile(module, backend="sublet", options=options) if compiled else module
        torch.manual_seed(1)
        loss = run(x).square().mean()
        loss.backward()
        losses.append((loss.detach(), *(each.grad for each in module.parameters())))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*losses, strict=True))
    plan = report()[-1].plan
    assert plan.arena_bytes <= (8 << 20 if options else 10 << 20)


def test_a_training_step_draws_what_the_eager_loop_draws() -> None:
    given, modules = (torch.randn(64, 256), torch.randn(64, 256)), (layers(), layers())
    runs = (modules[0], None)
    trained = [weights_after_steps(each, F.mse_loss, *given, run=run) for each, run in zip(modules, runs, strict=True)]
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*trained, strict=True))
