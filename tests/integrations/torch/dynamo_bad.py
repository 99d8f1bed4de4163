"""What cannot be planned: it is left to PyTorch, or raises what it raises eagerly, and is never wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.integrations.torch.cases import Compile, case, gradients, leaf, raised


@case
def complex_numbers(wrap: Compile) -> Any:
    x = leaf(8)
    spectrum = torch.randn(8, dtype=torch.complex64)
    y = wrap(lambda x: torch.fft.ifft(torch.fft.fft(x) * 2).real + 1)(x)
    w = wrap(lambda x, z: (x * z, z.conj() * 2, torch.view_as_real(z), z.abs()))(x.detach(), spectrum)
    return y, gradients(y, x), [each.resolve_conj() for each in w]


@case
def conjugates_and_negatives(wrap: Compile) -> Any:
    z = torch.randn(4, dtype=torch.complex64)
    return wrap(lambda x: x * 2)(z.conj().imag), wrap(lambda x: x.clone())(torch._neg_view(torch.randn(3)))


@case
def sparse_tensors(wrap: Compile) -> Any:
    dense = torch.randn(4, 4).relu()
    found = []
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        found.append(wrap(lambda a, b: a @ b)(sparse, torch.ones(4, 3)))
    return found, wrap(lambda x: x.to_sparse().to_dense() * 2)(dense)


@case
def sparse_gradients(wrap: Compile) -> Any:
    words = nn.Embedding(9, 4, sparse=True)
    y = wrap(lambda at: words(at).sum(1) * 2)(torch.randint(0, 9, (3, 5)))
    y.sum().backward()
    return y, words.weight.grad.to_dense()


@case
def quantized_numbers(wrap: Compile) -> Any:
    x = torch.randn(4)
    return wrap(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1)(x)


@case
def small_floats(wrap: Compile) -> Any:
    x = torch.randn(16)
    found = [wrap(lambda x, t=t: x.to(t).float() * 2)(x) for t in (torch.float8_e4m3fn, torch.float8_e5m2)]
    return found, wrap(lambda x: x.to(torch.float8_e4m3fn))(x).float()


@case
def ragged_tensors(wrap: Compile) -> Any:
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    return wrap(lambda x: x.sin() * 2)(ragged).values()


@case
def extents_that_only_a_run_knows(wrap: Compile) -> Any:
    run = wrap(lambda x: (x[x > 0] * 2, x.nonzero(), x.unique()))
    return [run(torch.randn(8)) for _ in range(2)]


@case
def extents_that_only_a_run_knows_in_one_graph(wrap: Compile) -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        run = wrap(lambda x: (x[x > 0] * 2).sum() + x.nonzero().sum() + x.sum().item())
        return [run(torch.randn(8)) for _ in range(2)]


@torch.library.custom_op("optests::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@thrice.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


@case
def operators_of_others(wrap: Compile) -> Any:
    return wrap(lambda x: thrice(x.sin()) + 1)(torch.randn(4))


@case
def tensors_without_bytes(wrap: Compile) -> Any:
    y = wrap(lambda x: x @ x.t())(torch.randn(3, 4, device="meta"))
    return y.shape, str(y.device)


@case
def gradients_of_gradients(wrap: Compile) -> Any:
    """Of what is compiled there are none: the error is PyTorch's."""
    x = leaf(3)
    run = wrap(lambda x: x.sin().exp())
    (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    told = raised(lambda: torch.autograd.grad(first.sum(), x))
    return first.detach(), told in ("", "RuntimeError")


@case
def mistakes_raise_what_they_raise(wrap: Compile) -> Any:
    run = wrap(lambda x, y: x @ y)
    good = run(torch.ones(2, 3), torch.ones(3, 2))
    told = raised(run, torch.ones(2, 3), torch.ones(2, 3))
    return good, bool(told), run(torch.ones(2, 3), torch.ones(3, 4))


@case
def indices_out_of_range_leave_it_usable(wrap: Compile) -> Any:
    words = torch.randn(5, 4)
    run = wrap(lambda at: torch.nn.functional.embedding(at, words) * 2)
    told = raised(run, torch.tensor([7]))
    return told, run(torch.tensor([1, 4])), raised(run, torch.tensor([9])), run(torch.tensor([0, 2]))


@case
def types_that_change(wrap: Compile) -> Any:
    run = wrap(lambda x: x * 2 + 1)
    kinds = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.uint8,
        torch.float16,
    )
    return [run(torch.ones(3).to(kind)) for kind in kinds]
