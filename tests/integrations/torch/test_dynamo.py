"""Some of the cases of `dynamo`, and of what `opinfo` asks of operators; `make fuzz-torch` has all of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integrations.torch.dynamo import (  # noqa: E402
    CASES,
    differences,
)
from tests.integrations.torch.judged import (  # noqa: E402
    CLOSE,
    EQUAL,
    judge,
)

F = torch.nn.functional


@pytest.mark.parametrize(
    "name",
    ["results that are views of each other", "frozen statistics have gradients", "ragged tensors", "quantized numbers",
     "indices out of range leave it usable"],
)  # fmt: skip
def test_as_eagerly(name: str) -> None:
    wrong, _ = differences(CASES[name])
    assert not wrong


OPERATORS = {
    "a loss that is a mean": lambda x, y: F.smooth_l1_loss(x, y) + F.mse_loss(x, y) + F.huber_loss(x, y),
    "a loss that is none": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "over an input": lambda x, y: (x.clamp(0, 1), y.exp().sqrt()),
    "parts of one": lambda x, y: (x * y).chunk(2),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_planned_and_right(name: str) -> None:
    """Inputs are as they were; in a poisoned arena too."""
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    found: Any = judge(OPERATORS[name], [x, y])
    assert found.kind in (EQUAL, CLOSE), found
