"""Operators without an `out=` of their own, written with others or a piece at a time: what they give is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sublet
from sublet.integrations.torch.compile.arena_pool import ArenaPool
from sublet.integrations.torch.compile.joint_graph import capture_program
from sublet.integrations.torch.dialect import ROW_BY_ROW
from sublet.integrations.torch.kernels.out_variants import CHUNK_BYTES, CHUNK_RULES, CHUNKERS, OUT_VARIANTS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

A = torch.ops.aten
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def rows(*shape: int) -> Any:
    return torch.randn(*shape)


def indices(most: int, *shape: int) -> Any:
    return torch.randint(0, most, shape)


def flash(*operands: Any, **options: Any) -> Any:
    return A._scaled_dot_product_flash_attention_for_cpu(*operands, **options)


def flash_gradient(dy: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    y, lse = flash(q, k, v, attn_mask=mask)
    return A._scaled_dot_product_flash_attention_for_cpu_backward(dy, q, k, v, y, lse, 0.0, False, attn_mask=mask)


def pool_gradient(dy: Any, x: Any) -> Any:
    _, at = A.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return A.max_pool2d_with_indices_backward(dy, x, [2, 2], [2, 2], [0, 0], [1, 1], False, at)


def group_norm(groups: int, x: Any, *affine: Any) -> Any:
    scale, bias = affine or (None, None)
    return A.native_group_norm(x, scale, bias, *x.shape[:2], x[0, 0].numel(), groups, 1e-5)


def group_norm_gradient(groups: int, dy: Any, x: Any, scale: Any) -> Any:
    _, mean, rstd = group_norm(groups, x)
    sizes = (*x.shape[:2], x[0, 0].numel(), groups)
    return A.native_group_norm_backward(dy, x, mean, rstd, scale, *sizes, [True] * 3)


HEADS = [rows(3, 2, 256, 64) for _ in range(4)]
CASES: dict[str, Case] = {
    "new_zeros": (lambda x: A.new_zeros(x, [2, 3]) + x.sum(), (rows(3),)),
    "zeros_like": (lambda x: A.zeros_like(x) + 1, (rows(3),)),
    "new_ones": (lambda x: A.new_ones(x, [2, 3]) + 1, (rows(3),)),
    "ones_like": (lambda x: A.ones_like(x) * 2, (rows(3),)),
    "full_like": (lambda x: A.full_like(x, 2.5) + 1, (rows(3),)),
    "new_full": (lambda x: A.new_full(x, [4], 2.5) + 1, (rows(3),)),
    "copy": (lambda x, y: A.copy(x, y) + 1, (rows(3, 4), rows(4))),
    "embedding": (lambda w, i: A.embedding(w, i) + 1, (rows(9, 4), indices(9, 2, 5))),
    "embedding_dense_backward": (
        lambda dy, i: A.embedding_dense_backward(dy, i, 9, -1, False), (rows(2, 5, 4), indices(9, 2, 5))
    ),
    "embedding_dense_backward, padded": (
        lambda dy, i: A.embedding_dense_backward(dy, i, 4, 2, False), (rows(2, 5, 4), indices(4, 2, 5))
    ),
    "slice_backward": (lambda dy: A.slice_backward(dy, [5, 7], 1, 1, 6, 2), (rows(5, 3),)),
    "select_backward": (lambda dy: A.select_backward(dy, [5, 7], 1, 3), (rows(5),)),
    "slice_scatter": (lambda x, y: A.slice_scatter(x, y, 1, 1, 6, 2) + x, (rows(5, 7), rows(5, 3))),
    "select_scatter": (lambda x, y: A.select_scatter(x, y, 1, -2) * x, (rows(5, 7), rows(5))),
    "as_strided_scatter": (lambda x, y: A.as_strided_scatter(x, y, [3], [2], 1), (rows(9), rows(3))),
    "constant_pad_nd": (lambda x: A.constant_pad_nd(x, [1, 2, -1, 3], 0.5), (rows(2, 5, 4),)),
    "roll": (lambda x: A.roll(x, [2, -3], [0, 2]), (rows(5, 2, 7),)),
    "repeat": (lambda x: A.repeat(x, [2, 1, 3]), (rows(4, 5),)),
    "repeat, strided": (lambda x: A.repeat(x.t(), [1, 3]), (rows(4, 5),)),
    "_adaptive_avg_pool2d_backward": (A._adaptive_avg_pool2d_backward, (rows(2, 3, 1, 1), rows(2, 3, 5, 4))),
    "_adaptive_avg_pool2d_backward, cut": (
        A._adaptive_avg_pool2d_backward, (rows(3, 128, 2, 2), rows(3, 128, 40, 40))
    ),
    "_adaptive_avg_pool2d, one image": (lambda x: A._adaptive_avg_pool2d(x, [90, 90]), (rows(50, 100, 100),)),
    "max_pool2d_with_indices, equal maxima": (
        lambda x: A.max_pool2d_with_indices(x.round(), [3, 3], [2, 2], [1, 1]), (rows(3, 10, 120, 200),)
    ),
    "max_pool2d_with_indices_backward, one image": (pool_gradient, (rows(30, 60, 200), rows(30, 120, 400))),
    "max_pool2d_with_indices_backward": (pool_gradient, (rows(3, 10, 60, 200), rows(3, 10, 120, 400))),
    "slice_scatter, onto itself": (
        lambda x: (y := A.mul(x, 2), A.slice_scatter(y, A.slice(y, 0, 0, 4), 0, 1, 5))[1] + 1, (rows(6, 3),)
    ),
    "_adaptive_avg_pool2d": (lambda x: A._adaptive_avg_pool2d(x, [30, 30]), (rows(3, 200, 40, 40),)),
    "upsample_bicubic2d": (lambda x: A.upsample_bicubic2d(x, [40, 40], False), (rows(3, 200, 30, 30),)),
    "native_dropout_backward": (
        lambda dy, mask: A.native_dropout_backward(dy, mask, 2.0), (rows(300, 1100), indices(2, 300, 1100).bool())
    ),
    "native_dropout_backward, in place": (
        lambda dy, mask: A.native_dropout_backward(dy * 3, mask, 2.0), (rows(300, 1100), indices(2, 300, 1100).bool())
    ),
    "hardswish_backward, in place": (
        lambda dy, x: A.hardswish_backward(dy * 3, x + 1), (rows(300, 1100), rows(300, 1100))
    ),
    "hardswish_backward": (A.hardswish_backward, (rows(300, 1100), rows(300, 1100))),
    "_scaled_dot_product_flash_attention_for_cpu": (flash, tuple(HEADS[:3])),
    "_scaled_dot_product_flash_attention_for_cpu, masked": (
        lambda q, k, v, m: flash(q.transpose(1, 2), k, v, attn_mask=m),
        (rows(3, 256, 2, 64), *HEADS[:2], rows(1, 2, 256, 256)),
    ),
    "_scaled_dot_product_flash_attention_for_cpu, one mask for all": (
        lambda q, k, v, m: flash(q, k, v, attn_mask=m), (*HEADS[:3], rows(256, 256))
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward, one mask for all": (
        flash_gradient, (*HEADS, rows(256, 256))
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (flash_gradient, (*HEADS, rows(3, 1, 256, 256))),
    "_unsafe_index": (
        lambda x, i, j: A._unsafe_index(x, [None, i, j]) + 1, (rows(3, 5, 7), indices(5, 4, 1), indices(7, 6))
    ),
    "_unsafe_index_put": (
        lambda x, i, y: A._unsafe_index_put(x, [None, i], y, True), (rows(3, 5), indices(5, 9), rows(3, 9))
    ),
    "index_put": (lambda x, i, y: A.index_put(x, [i], y), (rows(5, 3), torch.arange(4), rows(4, 3))),
    "native_group_norm": (lambda *xs: group_norm(3, *xs), (rows(2, 6, 5), rows(6), rows(6))),
    "native_group_norm, several samples a piece": (
        lambda *xs: group_norm(4, *xs), (rows(9, 8, 60, 70), rows(8), rows(8))
    ),
    "native_group_norm, some groups a piece": (
        lambda *xs: group_norm(5, *xs), (rows(2, 10, 90, 400), rows(10), rows(10))
    ),
    "native_group_norm, channels last": (
        lambda x: group_norm(5, x.contiguous(memory_format=torch.channels_last)), (rows(3, 10, 90, 200),)
    ),
    "native_group_norm_backward": (lambda *xs: group_norm_gradient(3, *xs), (rows(2, 6, 5), rows(2, 6, 5), rows(6))),
    "native_group_norm_backward, several samples a piece": (
        lambda *xs: group_norm_gradient(4, *xs), (rows(9, 8, 60, 70) / 100, rows(9, 8, 60, 70), rows(8))
    ),
    "native_group_norm_backward, some groups a piece": (
        lambda *xs: group_norm_gradient(5, *xs), (rows(2, 10, 90, 400) / 100, rows(2, 10, 90, 400), rows(10))
    ),
    "native_group_norm_backward, channels last": (
        lambda dy, x, w: group_norm_gradient(5, dy, x.contiguous(memory_format=torch.channels_last), w),
        (rows(3, 10, 90, 200) / 100, rows(3, 10, 90, 200), rows(10)),
    ),
    "convolution, transposed, of a turned image": (
        lambda x, w: A.convolution(x.transpose(2, 3), w, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        (rows(3, 8, 64, 64), rows(8, 32, 2, 2)),
    ),
    "convolution_backward, transposed, of a turned image": (
        lambda dy, x, w: A.convolution_backward(
            dy, x.transpose(2, 3), w, [32], [2, 2], [0, 0], [1, 1], True, [0, 0], 1, [True, True, True]
        ),
        (rows(3, 32, 128, 128), rows(3, 32, 64, 64), rows(32, 32, 2, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_are_pytorchs(name: str) -> None:
    """In a poisoned arena, and told with no more bytes than a piece."""
    function, inputs = CASES[name]
    right = function(*inputs)
    traced = make_fx(lambda *xs: list(found) if isinstance(found := function(*xs), tuple) else [found])(*inputs)
    pool = ArenaPool(capture_program(traced, None, (), {}), inputs, sublet.Options())
    arena, piece = pool.lease().arena, pool.captured.passes[0]
    sublet.run_poisoned(arena.executable, {tensor.value.name: inputs[at] for at, tensor in piece.arguments.items()})
    for position, each in enumerate(right if isinstance(right, tuple | list) else [right]):
        assert torch.allclose(arena.results[position], each, rtol=1e-4, atol=1e-5)
    assert all(nbytes <= CHUNK_BYTES for _, nbytes in pool.allocations), pool.allocations


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_along_the_last_axis_a_softmax_may_overwrite(name: str) -> None:
    """Every operand that the facts say, at sizes that ATen computes in different ways, and both at once."""
    operator = getattr(A, name.partition(".")[0])
    function, (place,) = operator.out, [each.name for each in operator.out._schema.arguments if each.is_out]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for shape in ((7,), (3, 5), (4, 33), (16, 5000), (2, 3, 1000), (300, 17), (1, 70000)):
            given = [torch.softmax(torch.randn(shape), -1).to(dtype) for _ in ROW_BY_ROW[name]]
            rest = (len(shape) - 1, False) if len(given) == 1 else (len(shape) - 1, dtype)
            right = operator.default(*given, *rest)
            for position in ROW_BY_ROW[name]:
                copies = [each.clone() for each in given]
                function(*copies, *rest, **{place: copies[position]})
                assert torch.equal(copies[position], right), (dtype, shape, position)
            one = given[0].clone()
            same = operator.default(*[one] * len(given), *rest)
            function(*[one] * len(given), *rest, **{place: one})
            assert torch.equal(one, same)


@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"reduction": "none"}, {"weight": 0.1 + rows(700).abs()}, {"ignore_index": 3}],
    ids=["mean", "sum", "none", "weight", "ignored"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_cross_entropy_lies_over_the_log_softmax(options: dict[str, Any], dtype: Any) -> None:
    """PyTorch's bits, in a poisoned arena that never has as much as the logits once more."""
    options = {name: each.to(dtype) if name == "weight" else each for name, each in options.items()}

    def gradient(x: Any, labels: Any, dy: Any) -> list[Any]:
        y = (x * 2).requires_grad_()
        loss = torch.nn.functional.cross_entropy(y, labels, **options)
        return [torch.autograd.grad(loss, y, dy if loss.dim() else dy[0])[0] + 1]

    inputs = (rows(2000, 700).to(dtype), indices(5, 2000), rows(2000).to(dtype))
    with torch.enable_grad():
        (right,) = gradient(*inputs)
        pool = ArenaPool(capture_program(make_fx(gradient)(*inputs), None, (), {}), inputs, sublet.Options())
    arena, piece = pool.lease().arena, pool.captured.passes[0]
    sublet.run_poisoned(arena.executable, {tensor.value.name: inputs[at] for at, tensor in piece.arguments.items()})
    assert torch.equal(arena.results[0], right)
    assert pool.plan.arena_bytes < inputs[0].nbytes + 2 * CHUNK_BYTES
    assert not pool.allocations


def test_every_operator_that_is_written_or_cut_is_tried() -> None:
    tried = {name.partition(",")[0] for name in CASES}
    made_whole = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}  # of which nothing is known
    creating = {"full", "scalar_tensor"}  # of no tensor: tracing makes constants of them
    named = {name.partition(".")[0] for name in (*OUT_VARIANTS, *CHUNK_RULES, *CHUNKERS)} - made_whole - creating
    named -= {"bernoulli"}  # tried with a seed in test_dropout.py
    assert named <= tried
