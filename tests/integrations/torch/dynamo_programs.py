"""Programs: how functions are called, what they change beside tensors and how these are seen, operators that write."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.integrations.torch.cases import Compile, case, gradients, leaf, raised

F = nn.functional


@case
def arguments_of_all_kinds(wrap: Compile) -> Any:
    def function(x: Any, *rest: Any, scale: float = 2.0, named: Any = None, **more: Any) -> Any:
        y = x * scale + sum(rest)
        for each in (named or {}).values():
            y = y + each["t"][0] * each["k"]
        return y - more["last"] if "last" in more else y

    run, x = wrap(function), torch.randn(3)
    named = OrderedDict(a={"t": [torch.ones(3)], "k": 2}, b={"t": (torch.ones(3),), "k": 0.5})
    return run(x), run(x, x, 1, scale=3.0), run(x, named=named), run(x, last=torch.ones(1)), run(x, scale=0.25)


class Scaled:
    def __init__(self, by: float) -> None:
        self.by, self.calls = by, 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * self.by

    def method(self, x: Any) -> Any:
        return self(x) + 1


@case
def methods_partials_and_objects(wrap: Compile) -> Any:
    scaled, x = Scaled(3.0), torch.randn(3)
    found = [wrap(scaled.method)(x), wrap(partial(torch.add, alpha=2))(x, x), wrap(lambda x: scaled(x))(x)]
    scaled.by = 5.0
    return found, wrap(scaled.method)(x), scaled.calls


@case
def what_changes_beside_tensors(wrap: Compile) -> Any:
    seen: list[Any] = []
    counts = {"calls": 0}

    def function(x: Any) -> Any:
        y = x * 2
        seen.append(y)
        counts["calls"] += 1
        return y + len(seen)

    run = wrap(function)
    return [run(torch.ones(2)) for _ in range(3)], seen, counts


@case
def errors_that_a_function_catches(wrap: Compile) -> Any:
    def function(x: Any, table: Any) -> Any:
        try:
            return x * table[x.shape[0]]
        except KeyError:
            return x.sum()

    run = wrap(function)
    return run(torch.ones(2), {2: 3.0}), run(torch.ones(3), {2: 3.0})


@case
def what_is_asserted(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        torch._assert(x.shape[0] > 1, "too few")
        assert x.dim() == 2
        return x.softmax(-1)

    run = wrap(function)
    return run(torch.ones(2, 3)), raised(run, torch.ones(1, 3))


@case
def arrays_of_numpy(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        array = x.numpy() * 2
        return torch.from_numpy(array.sum(axis=0)) + 1

    return wrap(function)(torch.arange(6.0).reshape(2, 3))


@case
def numbers_as_arguments(wrap: Compile) -> Any:
    run = wrap(lambda x, n, a, flag: x[:n] * a if flag else x[n:] + a)
    return [run(torch.arange(8.0), n, a, flag) for n, a, flag in ((2, 0.5, True), (3, 1.5, True), (3, 2.5, False))]


@case
def numbers_that_a_graph_hands_on(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.reshape(-1, 2)
        torch._dynamo.graph_break()
        return y.sin() * y.shape[0] + x.numel(), y.shape[0]

    run = wrap(function, dynamic=True)
    return [run(torch.randn(n, 2)) for n in (3, 5, 2)]


@case
def all_extents_may_change(wrap: Compile) -> Any:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    run, found = wrap(module, dynamic=True), []
    for n, size in ((2, 6), (3, 8), (1, 5)):
        x = leaf(n, 2, size, size)
        y = run(x)
        found += [y, *gradients(y, x, *module.parameters())]
    return found


@case
def an_input_turned_around(wrap: Compile) -> Any:
    """Changes of how a tensor is seen, not of what it holds."""

    def function(x: Any, y: Any) -> Any:
        x.t_()
        y.unsqueeze_(0)
        return x * 2, y + 1

    x, y = torch.randn(3, 4), torch.randn(3)
    found = wrap(function)(x, y)
    return found, x, y


@case
def an_input_changed_and_turned_around(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        x.mul_(2)
        x.transpose_(0, 1)
        return x[0].clone(), x.sum(0)

    x = torch.randn(3, 4)
    return wrap(function)(x), x


@case
def data_of_a_tensor(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.data * 2
        return y + x.detach(), x.sin()

    x = leaf(3)
    found = wrap(function)(x)
    return found, gradients(found[1], x)


@case
def results_that_are_told_where_to_go(wrap: Compile) -> Any:
    """`out=`, into a tensor that fits, a view, and one that does not fit."""

    def function(x: Any, whole: Any) -> Any:
        torch.add(x, 1, out=whole[:3])
        y = torch.empty(0)
        torch.mul(x, 2, out=y)
        return y, whole.sum()

    x, whole = torch.randn(3, 4), torch.zeros(5, 4)
    return wrap(function)(x, whole), whole


@case
def elements_that_are_set(wrap: Compile) -> Any:
    def function(x: Any, at: Any, mask: Any) -> Any:
        x = x.clone()
        x[at] = -1
        x[mask] = 0
        x[:, ::2] += 1
        x[..., None, -1] *= 3
        x.index_put_((at, at), torch.ones(2), accumulate=True)
        x.scatter_add_(1, at[None].expand(4, 2), torch.ones(4, 2))
        x.masked_fill_(x > 2, 9).clamp_(max=5)
        return x

    x = leaf(4, 4)
    y = wrap(function)(x, torch.tensor([1, 3]), torch.eye(4, dtype=torch.bool))
    return y, gradients(y, x)


@case
def inputs_that_overlap_and_are_both_changed(wrap: Compile) -> Any:
    def function(x: Any, y: Any) -> Any:
        x.mul_(2)
        y.add_(1)
        return x + y

    base = torch.arange(12.0)
    found = wrap(function)(base[:8].view(2, 4), base[4:].view(2, 4))
    return found, base


@torch.library.custom_op("optests::grow", mutates_args=("x",))
def grow(x: torch.Tensor, by: float) -> None:
    x.add_(by)


@case
def operators_of_others_that_write(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x * 2
        grow(y, 1.5)
        grow(x, 2.5)
        return y + x

    x = torch.randn(4)
    return wrap(function)(x), x


@torch.library.custom_op("optests::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


cubed.register_fake(torch.empty_like)
cubed.register_autograd(
    lambda ctx, dy: dy * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@case
def operators_of_others_with_gradients(wrap: Compile) -> Any:
    x = leaf(4)
    y = wrap(lambda x: cubed(x.sin()) * 2)(x)
    return y, gradients(y, x)


@case
def draws_of_all_kinds(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        return (
            torch.bernoulli(x.sigmoid()),
            torch.multinomial(x.softmax(-1), 2),
            torch.randint(0, 9, (3,)) + torch.randperm(3),
            torch.normal(x, 1.0) + torch.empty(4).uniform_(-1, 1),
        )

    run = wrap(function)
    return [run(torch.linspace(0, 1, 12).reshape(3, 4)) for _ in range(2)]


@case
def tensors_from_inference_mode(wrap: Compile) -> Any:
    with torch.inference_mode():
        frozen = torch.randn(3, 4)
    x = leaf(3, 4)
    y = wrap(lambda x, frozen: x + frozen * 2)(x, frozen)
    return y, gradients(y, x)


@case
def nothing_that_is_given(wrap: Compile) -> Any:
    return wrap(lambda: torch.arange(6.0).reshape(2, 3) @ torch.ones(3, 2))(), wrap(lambda x: None)(torch.ones(1))


@case
def a_loop_of_the_program(wrap: Compile) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def function(x: Any) -> Any:
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x.sin() + 1), (torch.tensor(0), x))

    return wrap(function)(torch.randn(3, 4))


@case
def attention_of_all_kinds(wrap: Compile) -> Any:
    q, k, v = leaf(2, 4, 5, 8), leaf(2, 2, 6, 8), leaf(2, 2, 6, 8)
    mask = torch.rand(5, 6) > 0.3

    def function(q: Any, k: Any, v: Any) -> Any:
        return (
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
            F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.2),
        )

    ys = wrap(function)(q, k, v)
    return ys, gradients(sum(y.sum() for y in ys), q, k, v)


@case
def attention_by_a_function_of_scores(wrap: Compile) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    return wrap(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1))(q, k, v)


@case
def types_that_meet(wrap: Compile) -> Any:
    def function(x: Any, n: Any) -> Any:
        return x + n, x.double() * 2, n / 2, n // 2, (x > 0) & (n > 1), x.half() @ x.half().t(), n.to(torch.uint8) << 1

    return wrap(function)(torch.randn(3, 3), torch.arange(3))
