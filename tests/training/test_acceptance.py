"""What libnnc's own tests of its minimiser ask: a.w becomes [-1, 1], in an arena no larger than its."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn

CASES = [
    (sublet.SGD(0.05, momentum=0.9), 512, 1e-3),
    (sublet.Adam(0.05), 576, 1e-1),
    (sublet.AdamW(0.05), 576, 1e-1),
    (sublet.RMSProp(0.01), 576, 1e-1),
]
"""An optimiser, the bytes of libnnc's arena, and how near the result must come."""


@pytest.mark.parametrize(("optimizer", "most", "tolerance"), CASES, ids=lambda case: type(case).__name__)
def test_minimises(optimizer: Any, most: int, tolerance: float) -> None:
    g = sublet.Graph()
    a, wanted = g.input("a", (1, 2)), g.constant(np.array([[-1, 1]], np.float32))
    w = g.parameter("w", (2, 2), initial=np.array([[1.2, 0.4], [-0.3, 2.0]]))
    b = a @ w
    g.output("b", b)
    executable = sublet.compile(sublet.train_step(nn.square(b - wanted).sum(), [w], optimizer))
    assert executable.arena_bytes <= most
    given = np.array([[0.7, 1.1]], np.float32)
    for _ in range(600):
        found = executable(a=given)["b"]
    np.testing.assert_allclose(found, [[-1, 1]], atol=tolerance)
