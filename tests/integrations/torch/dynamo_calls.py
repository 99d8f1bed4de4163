"""Functions: graph breaks, gradients, modes, shapes, randomness, control flow."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from tests.integrations.torch.cases import Compile, case, gradients, leaf

F = torch.nn.functional


@case
def a_graph_break(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.sin() * 2
        torch._dynamo.graph_break()
        return y.cos() + x

    x = leaf(3, 4)
    y = wrap(function)(x)
    return y, gradients(y, x)


@case
def a_branch_on_what_a_tensor_holds(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x * 2
        return y.exp() if y.sum() > 0 else y.tanh()

    run = wrap(function)
    return [(y := run(x), gradients(y, x)) for x in (torch.ones(3).requires_grad_(), (-torch.ones(3)).requires_grad_())]


@case
def one_graph_in_full(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y = wrap(lambda x: F.layer_norm(x, [4]).relu() @ x.t(), fullgraph=True)(x)
    return y, gradients(y, x)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Named:
    value: Any
    twice: Any
    count: int


@case
def outputs_of_all_kinds(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        return {"pair": Pair(x + 1, [x.sum(), None, 3, "word", x.shape[0]]), "none": None, "flag": True, "real": 2.5}

    found = wrap(function)(torch.randn(3))
    data = wrap(lambda x: Named(x, x * 2, x.dim()))(torch.randn(3))
    return found, data.value, data.twice, data.count


@case
def numbers_of_all_types_beside_gradients(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y, which, positive, order = wrap(lambda x: (x.max(1).values, x.argmax(1), x > 0, x.sort(1)))(x)
    return y, which, positive, order, gradients(y + order.values.sum(), x)


@case
def one_of_two_results_is_differentiated(wrap: Compile) -> Any:
    x, y = leaf(3, 4), leaf(3, 4)
    first, second = wrap(lambda x, y: (x * y, x.exp() + y))(x, y)
    return gradients(first, x, y, retain_graph=True), gradients(second, y), second


@case
def what_is_detached(wrap: Compile) -> Any:
    def function(x: Any, y: Any) -> Any:
        with torch.no_grad():
            scale = x.abs().max()
        return (x / scale).detach() * y + y.detach() * x

    x, y = leaf(3, 4), leaf(3, 4)
    z = wrap(function)(x, y)
    return z, gradients(z, x, y)


@case
def a_graph_kept_and_run_again(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y = wrap(lambda x: x.tanh().exp())(x)
    return [gradients(y, x, retain_graph=keep) for keep in (True, True, False)]


@case
def gradients_that_add_up(wrap: Compile) -> Any:
    x = leaf(3, 4)
    run = wrap(lambda x: (x.sigmoid() @ x.t()).exp())
    (run(x) * run(x * 2)).sum().backward()
    run(x).sum().backward()
    return x.grad


@case
def without_gradients_and_in_inference_mode(wrap: Compile) -> Any:
    run, x = wrap(lambda x: (x @ x.t()).softmax(-1)), leaf(3, 4)
    with torch.no_grad():
        first = run(x)
    with torch.inference_mode():
        second = run(x).clone()
    third = run(x)
    return first, second.sum().item(), gradients(third, x), first.requires_grad, third.requires_grad


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return dy * (x.abs() < 0.5)


@case
def a_function_with_its_own_gradient(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y = wrap(lambda x: Clipped.apply(x * 2) + x)(x)
    return y, gradients(y, x)


@case
def what_is_checkpointed(wrap: Compile) -> Any:
    x, w = leaf(8, 8), leaf(8, 8)

    def layer(x: Any, w: Any) -> Any:
        return F.gelu(x @ w).softmax(-1)

    def function(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = checkpoint(layer, x, w, use_reentrant=False)
        return x

    y = wrap(function)(x, w)
    return y, gradients(y, x, w)


@case
def autocast_to_bfloat16(wrap: Compile) -> Any:
    x, w = leaf(8, 8), leaf(8, 8)

    def function(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float() + 1, y

    run = wrap(function)
    y, low = run(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outside = wrap(lambda x, w: (x @ w).relu())(x, w)
    return y, low, outside, [each.bfloat16() for each in gradients(y, x, w)], outside.dtype


@case
def dropout_draws_what_eager_draws(wrap: Compile) -> Any:
    run, x = wrap(lambda x: F.dropout(x * 2, 0.4) + torch.rand_like(x) + torch.randn(4)), leaf(3, 4)
    found = []
    for _ in range(3):
        y = run(x)
        found += [y, *gradients(y, x)]
    torch.manual_seed(9)
    return found, run(x), torch.rand(2)


@case
def extents_that_are_marked(wrap: Compile) -> Any:
    run, found = wrap(lambda x: (x.softmax(0) * x.shape[0]).cumsum(0)), []
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        y = run(x.requires_grad_())
        found += [y, *gradients(y, x)]
    return found


@case
def extents_that_turn_out_to_change(wrap: Compile) -> Any:
    run = wrap(lambda x, n: (torch.cat([x, x * n]).reshape(-1, 2), x.shape[0] + n))
    return [run(torch.randn(rows, 4), n) for rows, n in ((2, 1), (3, 2), (5, 2), (5, 7), (1, 3), (0, 3))]


@case
def empty_and_single_tensors(wrap: Compile) -> Any:
    def function(x: Any, y: Any, z: Any) -> Any:
        return x.sum() + y, torch.cat([x, x]), (x @ x.t()).sum(0), z * 2, y.expand(3)

    x, y = torch.randn(0, 4).requires_grad_(), torch.tensor(2.0, requires_grad=True)
    found = wrap(function)(x, y, torch.ones(1, 1))
    return found, gradients(found[0], x, y)


@case
def vectorised_and_differentiated_inside(wrap: Compile) -> Any:
    x = torch.randn(3, 4)
    each = wrap(lambda x: torch.func.vmap(lambda row: row.sin() * row.sum())(x))(x)
    grad = wrap(lambda x: torch.func.grad(lambda x: (x.sin() ** 2).sum())(x))(x)
    return each, grad


@case
def a_branch_of_the_program(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + x, (x,))

    run = wrap(function, fullgraph=True)
    return [run(x) for x in (torch.ones(3), -torch.ones(3))]


@case
def a_branch_with_gradients(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + x, (x,))

    run, found = wrap(function), []
    for sign in (1, -1):
        x = (sign * torch.ones(3)).requires_grad_()
        found += [y := run(x), gradients(y, x)]
    return found


@case
def compiled_in_compiled(wrap: Compile) -> Any:
    inner = wrap(lambda x: x.tanh() * 2)
    x = leaf(3, 4)
    y = wrap(lambda x: inner(x + 1) @ x.t())(x)
    return y, gradients(y, x), inner(x)


@case
def not_compiled_in_compiled(wrap: Compile) -> Any:
    @torch.compiler.disable
    def outside(x: Any) -> Any:
        return x.exp()

    x = leaf(3, 4)
    y = wrap(lambda x: outside(x + 1) * x)(x)
    return y, gradients(y, x)


@case
def several_threads(wrap: Compile) -> Any:
    """Forwards and backwards of one compiled function, at the same time."""
    w = leaf(16, 16)
    run = wrap(lambda x, w: (x @ w).tanh() @ w)
    run(torch.randn(8, 16), w)
    xs = [torch.randn(8, 16).requires_grad_() for _ in range(4)]
    found: list[Any] = [None] * len(xs)

    def work(i: int) -> None:
        for _ in range(5):
            y = run(xs[i], w)
            found[i] = (y, *gradients(y, xs[i], w))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@case
def hooks_on_tensors_and_what_is_saved_elsewhere(wrap: Compile) -> Any:
    x = leaf(3, 4)
    x.register_hook(lambda gradient: gradient * 3)
    run = wrap(lambda x: (x.exp() * x).tanh())
    with torch.autograd.graph.save_on_cpu():
        y = run(x)
    return y, gradients(y, x)
