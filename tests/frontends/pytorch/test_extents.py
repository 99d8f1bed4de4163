"""Extents that PyTorch traces otherwise than its kernels give them: bags of an embedding."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sublet  # noqa: E402
from sublet.frontends.torch import extents  # noqa: E402
from tests.frontends.pytorch.judged import EQUAL, REFUSED, judge  # noqa: E402


def bags(mode: str, with_last: bool) -> Any:
    """Two bags of rows of a table, as a function of it, of the rows, and of where bags begin."""

    def function(table: Any, rows: Any, begins: Any) -> Any:
        return torch.nn.functional.embedding_bag(rows, table, begins, mode=mode, include_last_offset=with_last)

    return function


def drawn(dtype: Any, with_last: bool) -> list[Any]:
    return [torch.randn(7, 5).to(dtype), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 3, 6][: 2 + with_last])]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_have_the_extents_of_the_kernel(mode: str) -> None:
    for dtype, with_last in product((torch.float32, torch.bfloat16, torch.float64), (False, True)):
        assert judge(bags(mode, with_last), drawn(dtype, with_last)).kind == EQUAL


def test_what_a_gradient_reads_of_them_has_these_too() -> None:
    """Of sums in bf16 the kernel keeps nothing, where PyTorch traces a number for each index."""
    table, *rest = drawn(torch.bfloat16, True)
    ours, right = (table.clone().requires_grad_() for _ in range(2))
    for leaf, run in ((ours, torch.compile(bags("sum", True), backend="sublet")), (right, bags("sum", True))):
        run(leaf, *rest).square().sum().backward()
    assert torch.equal(ours.grad, right.grad)
    assert sublet.torch.report()[-1].plan is not None


def test_a_kernel_that_would_take_much_to_ask_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "MOST", 10)
    found = judge(bags("sum", True), drawn(torch.float32, True))
    assert found.kind == REFUSED
    assert "so many elements" in found.why
