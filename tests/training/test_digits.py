"""A real training run: scikit-learn's digits, in exactly the planned arena, beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import sublet
from benchmarks import digits
from benchmarks.train_steps import eager_step_of
from sublet.base.optional_imports import is_installed


@pytest.mark.skipif(not is_installed("sklearn"), reason="needs scikit-learn")
def test_a_small_resnet_learns_as_pytorchs_does() -> None:
    """An epoch in f64, where rounding does not drive the two apart; `make train-digits` goes on to 98 %."""
    data, step = digits.digits(np.float64), digits.training(64, "f64")
    executable = sublet.compile(step.model)
    arena = sublet.aligned_bytes(executable.arena_bytes, 64)
    executable.bind("arena", arena)
    assert executable.plan.gap == 0
    theirs = eager_step_of(step, digits.RATE, digits.MOMENTUM)
    batches = [batch for epoch in range(1) for batch in data.batches(64, epoch)]
    losses = [(executable(batch)["loss"].item(), theirs(batch)) for batch in batches]
    ours, eager = map(np.array, zip(*losses, strict=True))
    np.testing.assert_allclose(ours, eager, rtol=1e-6)
    assert ours[-5:].mean() < 0.25 < ours[:3].mean()
    assert digits.accuracy(executable, data) > 0.9
