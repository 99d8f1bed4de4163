"""Transposed convolutions of PyTorch's are commands of Sublet's wherever images lie as these take them."""

from __future__ import annotations

import random

import pytest

import sublet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FUNCTIONS = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", range(12))
def test_results_gradients_and_strides_are_eagers(seed: int) -> None:
    """Of 1 to 3 axes, groups, strides, windows with gaps, pads of both kinds; channels last too."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    rank = seed % 3 + 1
    groups, stride, kernel, dilation = (rng.choice(each) for each in ((1, 2), (1, 2, 3), (2, 3), (1, 1, 2)))
    extra = rng.randint(0, max(stride, dilation) - 1)  # as much as a stride is no command's
    x = torch.randn(3, 2 * groups, *(rng.randint(3, 6) for _ in range(rank)), dtype=torch.float64)
    if rank == 2 and seed % 2:
        x = x.to(memory_format=torch.channels_last)
    given = [x, torch.randn(2 * groups, 3, *[kernel] * rank, dtype=torch.float64)]
    given += [torch.randn(3 * groups, dtype=torch.float64)] if seed % 4 else []
    for each in given:
        each.requires_grad_()

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return (FUNCTIONS[rank](x, w, b, stride, 1, extra, groups, dilation) * 1.5).sin()

    before = len(sublet.torch.report())
    found = []
    for run in (function, torch.compile(function, backend="sublet")):
        y = run(*given)
        found.append((y, *torch.autograd.grad(y.square().sum(), given)))
    for right, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)
    assert found[0][0].stride() == found[1][0].stride()
    report = sublet.torch.report()[before]
    copied = {op for op, _ in report.copied}
    assert ("aten.convolution.default" in copied) == (extra >= stride), report
