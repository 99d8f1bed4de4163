"""Memory: inputs that are changed, views, results that are the same memory, how tensors lie."""

from __future__ import annotations

from typing import Any

import torch

from tests.integrations.torch.cases import Compile, case, gradients, leaf


@case
def inputs_that_are_changed(wrap: Compile) -> Any:
    def function(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[1:].copy_(x[:-1] + 1)
        return x + y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    run = wrap(function)
    return run(x, y), run(y, x), x, y


@case
def inputs_that_are_changed_and_differentiated(wrap: Compile) -> Any:
    def function(x: Any, y: Any) -> Any:
        x.add_(y.sin())
        return (x * y).sum()

    x, y = torch.randn(3, 4), leaf(3, 4)
    total = wrap(function)(x, y)
    return total, gradients(total, y), x


@case
def inputs_that_are_views_of_each_other(wrap: Compile) -> Any:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2, x.sum()

    base = torch.arange(8.0)
    run = wrap(function)
    return run(base[:6], base[2:]), base, run(base, base), base


@case
def an_input_given_twice(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y = wrap(lambda a, b: a * b + a)(x, x)
    return y, gradients(y, x)


@case
def results_that_are_inputs_and_views_of_them(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        return x, x.t(), x[1:], x.view(-1), x + 0

    x = torch.randn(3, 4)
    found = wrap(function)(x)
    x.add_(1)
    return found, [each.data_ptr() == x.data_ptr() for each in found]


@case
def results_that_are_views_of_each_other(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x * 2
        return y, y.t(), y[:, 1:], y.view(2, -1)

    x = torch.randn(4, 4)
    found = wrap(function)(x)
    found[0].mul_(3)
    return found


@case
def a_result_given_twice(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.exp()
        return y, y

    first, second = wrap(function)(torch.randn(3))
    first.zero_()
    return first, second


@case
def results_outlive_the_next_call(wrap: Compile) -> Any:
    run = wrap(lambda x: (x * 2, (x + 1).t(), x.sum()))
    found = [run(torch.randn(64, 64)) for _ in range(3)]
    return found


@case
def results_may_be_written(wrap: Compile) -> Any:
    run, x = wrap(lambda x: (x.tanh(), x.exp())), leaf(3, 4)
    y, z = run(x)
    z.detach().add_(1)  # eagerly exp keeps its result: the gradient sees it
    return y + 1, gradients(y, x)


@case
def views_with_gradients(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x * 2
        return y[1:], y.t(), x.unsqueeze(0), x.expand(2, 3, 4)

    x = leaf(3, 4)
    found = wrap(function)(x)
    return found, [gradients(each, x, retain_graph=True) for each in found]


@case
def views_changed_after_the_call(wrap: Compile) -> Any:
    x = torch.randn(3, 4)
    y = wrap(lambda x: x.view(4, 3))(x)
    y.add_(1)
    return x, y


@case
def changed_in_between(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.clone()
        y[0] = 3
        z = y.view(-1)
        z[5:].mul_(2)
        y.relu_()
        return y, z, torch.zeros(3, 4).index_put_((torch.tensor([1]),), y[:1])

    x = leaf(3, 4)
    found = wrap(function)(x)
    return found, gradients(found[0] + found[2], x)


@case
def inputs_that_lie_otherwise(wrap: Compile) -> Any:
    run = wrap(lambda x: (x * 2 + 1, x.sum(0), x.reshape(-1)))
    whole = torch.randn(8, 6)
    inputs = [
        whole,
        whole.t(),
        whole[::2],
        whole[:, 1:4],
        whole[1:],
        torch.randn(6).expand(8, 6),
        torch.randn(3, 8, 6)[1],
    ]
    return [run(each) for each in inputs]


@case
def memory_that_is_not_aligned(wrap: Compile) -> Any:
    raw = torch.zeros(4 * 13 + 4, dtype=torch.uint8)[4:]
    x = raw.view(torch.float32)
    x.copy_(torch.randn(13))
    return wrap(lambda x: x.exp() @ x)(x), wrap(lambda x: x[1:] * 2)(x)


@case
def channels_last(wrap: Compile) -> Any:
    conv = torch.nn.Conv2d(3, 5, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    y = wrap(lambda x: torch.relu(conv(x)) + 1)(x)
    return y, gradients(y, x), y.is_contiguous(memory_format=torch.channels_last)


@case
def memory_that_a_tensor_gets_later(wrap: Compile) -> Any:
    x = torch.randn(3, 4)
    run = wrap(lambda x: x * 2)
    first = run(x)
    x.set_(torch.randn(3, 4))
    return first, run(x)


@case
def tensors_that_a_function_holds(wrap: Compile) -> Any:
    held, table = torch.randn(4), [torch.randn(4), torch.randn(4)]

    def function(x: Any) -> Any:
        held.add_(1)
        return x * held + table[1] + torch.tensor([1.0, 2.0, 3.0, 4.0])

    run = wrap(function)
    found = [run(torch.randn(4)) for _ in range(2)]
    table[1] = torch.randn(4)
    return found, run(torch.randn(4)), held


@case
def results_that_are_constants(wrap: Compile) -> Any:
    return wrap(lambda x: (torch.ones(3), torch.arange(4), torch.full((2, 2), 0.5), x.shape))(torch.randn(2))


@case
def many_results_and_many_inputs(wrap: Compile) -> Any:
    xs = [leaf(4) for _ in range(40)]
    ys = wrap(lambda *xs: [x * i for i, x in enumerate(xs)])(*xs)
    return ys, gradients(torch.stack(ys), *xs)
