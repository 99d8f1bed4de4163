"""Where PyTorch's kernels give something else than it traces: extents of bags, results of `out=` that lie otherwise.

`python -m tests.integrations.torch.beside` finds such operators.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sublet  # noqa: E402
from sublet.integrations.torch.reader import operators  # noqa: E402
from tests.integrations.torch.judged import (  # noqa: E402
    EQUAL,
    REFUSED,
    judge,
)
from tests.integrations.torch.laid import laid  # noqa: E402

F = torch.nn.functional


def bags(mode: str, with_last: bool) -> Any:
    """Two bags of rows of a table, as a function of it, of the rows, and of where bags begin."""

    def function(table: Any, rows: Any, begins: Any) -> Any:
        return F.embedding_bag(rows, table, begins, mode=mode, include_last_offset=with_last)

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


def unpooled(x: Any) -> Any:
    return F.max_unpool2d(*F.max_pool2d(x, 3, 2, return_indices=True), 3, 2)


def spread(dy: Any) -> Any:
    return torch.ops.aten.replication_pad2d_backward.default(dy, dy[..., 1:-1, 1:-1], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("function", "shape", "layout"),
    [
        (F.logsigmoid, (4, 6), "reversed"),
        (unpooled, (1, 2, 7, 7), "last"),
        (spread, (2, 3, 5, 5), "last"),
        (lambda x: F.pad(x, [1] * 6, "reflect"), (2, 3, 4, 4, 4), "last"),
        (lambda x: torch.normal(x, x.exp()), (4, 6), "reversed"),
    ],
)
def test_results_are_laid_out_as_they_are_read(function: Any, shape: tuple[int, ...], layout: str) -> None:
    """PyTorch's own `out=` lays them out otherwise than their place is, where the input is not row-major; what it draws
    it draws in the order of the place."""
    assert judge(function, [laid(torch.randn(shape), layout)]).kind == EQUAL


def test_a_kernel_that_would_take_much_to_ask_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MAX_PROBE_ELEMENTS", 10)
    found = judge(bags("sum", True), drawn(torch.float32, True))
    assert found.kind == REFUSED
    assert "too many elements" in found.why
