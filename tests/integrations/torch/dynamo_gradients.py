"""Gradients: what comes in, how it lies, what is missing; hooks, checkpoints, steps of training, errors in between."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.integrations.torch.cases import Compile, case, gradients, leaf, raised

F = nn.functional


@case
def what_comes_in_lies_otherwise(wrap: Compile) -> Any:
    """Expanded, transposed, every other element, of zeros: what a backward is given is seldom row-major."""
    x = leaf(4, 6)
    run, found = wrap(lambda x: (x.sin() @ x.t().exp()).tanh()), []
    whole = torch.randn(8, 8)
    for dy in (whole[:4, :4].t(), whole[::2, ::2], torch.ones(1, 1).expand(4, 4), torch.zeros(4, 4)):
        found += torch.autograd.grad(run(x), x, dy)
    return found


@case
def what_comes_in_for_channels_last(wrap: Compile) -> Any:
    conv, x = nn.Conv2d(3, 4, 3), leaf(2, 3, 6, 6)
    run, found = wrap(lambda x: F.gelu(conv(x))), []
    for form in (torch.contiguous_format, torch.channels_last):
        dy = torch.randn(2, 4, 4, 4).contiguous(memory_format=form)
        found += torch.autograd.grad(run(x), (x, *conv.parameters()), dy)
    return found


@case
def results_without_a_gradient(wrap: Compile) -> Any:
    """Of three results one, then two, then another one are differentiated."""
    x, y = leaf(3, 4), leaf(3, 4)
    run = wrap(lambda x, y: (x * y, x.exp(), y.cos() @ y.t()))
    found = []
    for wanted in ((0,), (0, 2), (1,)):
        results = run(x, y)
        total = sum(results[i].square().sum() for i in wanted)
        found.append(torch.autograd.grad(total, (x, y), materialize_grads=True))  # compiled they are zeros, not None
    return found


@case
def what_is_kept_is_changed_before_the_backward(wrap: Compile) -> Any:
    """A weight, or an input: neither may be."""
    module, x = nn.Linear(4, 4), leaf(4, 4)
    loss = wrap(lambda x: module(x).exp().sum())(x)
    with torch.no_grad():
        module.weight.add_(1)
    told, given, w = raised(loss.backward), torch.randn(4, 4), leaf(4, 4)
    loss = wrap(lambda x, w: (x @ w).exp().sum())(given, w)
    given.add_(1)
    return told, raised(loss.backward)


@case
def a_leaf_that_is_changed(wrap: Compile) -> Any:
    x = leaf(3)
    told = bool(raised(wrap(lambda x: x.add_(1)), x))

    def without(x: Any) -> Any:
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    y = wrap(without)(x)
    return told, y, gradients(y, x), x.detach()


@case
def a_result_changed_under_its_gradient(wrap: Compile) -> Any:
    x = leaf(3, 4)
    y = wrap(lambda x: x * 2 + 1)(x)
    y.mul_(3)
    y[0] = 0
    return y, gradients(y, x)


@case
def hooks_inside(wrap: Compile) -> Any:
    def function(x: Any) -> Any:
        y = x.sin()
        y.register_hook(lambda dy: dy * 2)
        return y.exp()

    x = leaf(3, 4)
    y = wrap(function)(x)
    return y, gradients(y, x)


@case
def a_hook_that_raises_leaves_it_usable(wrap: Compile) -> Any:
    def refuse(dy: Any) -> None:
        raise ValueError("no")

    x, w = leaf(8, 8), leaf(8, 8)
    run = wrap(lambda x, w: ((x @ w).tanh() @ w).exp())
    inner = x * 2
    inner.register_hook(refuse)
    told = raised(lambda: run(inner, w).sum().backward())
    found = []
    for _ in range(2):
        y = run(x, w)
        found += [y, *gradients(y, x, w)]
    return told, found


@case
def forwards_whose_backward_never_comes(wrap: Compile) -> Any:
    x = leaf(16, 16)
    run = wrap(lambda x: (x @ x.tanh()).exp().sum())
    dropped = [run(x).detach() for _ in range(4)]
    held = [run(x * k) for k in (0.1, 0.2, 0.3)]
    return dropped, [gradients(y, x) for y in reversed(held)]


@case
def backwards_in_another_order(wrap: Compile) -> Any:
    x, found = leaf(4, 4), {}
    run = wrap(lambda x, k: (x * k).sin().exp() @ x)
    ys = [run(x, torch.tensor(float(k))) for k in range(4)]
    for i in (2, 0, 3, 1):
        found[i] = gradients(ys[i], x)
    return [found[i] for i in range(4)], ys


@case
def a_backward_in_another_thread(wrap: Compile) -> Any:
    x = leaf(4, 4)
    y = wrap(lambda x: (x @ x).tanh().sum())(x)
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    return y, x.grad


@case
def checkpoints_that_draw(wrap: Compile) -> Any:
    x, w = leaf(8, 8), leaf(8, 8)

    def layer(x: Any, w: Any) -> Any:
        return F.dropout(F.gelu(x @ w), 0.5)

    def function(x: Any, w: Any) -> Any:
        for _ in range(2):
            x = checkpoint(layer, x, w, use_reentrant=False)
        return x

    y = wrap(function)(x, w)
    return y, gradients(y, x, w)


@case
def losses_that_are_added_and_scaled(wrap: Compile) -> Any:
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    run, x, labels = wrap(module), torch.randn(6, 4), torch.randint(0, 2, (6,))
    for part in (slice(0, 2), slice(2, 6)):
        (F.cross_entropy(run(x[part]), labels[part]) * 128).backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    return norm, [each.grad for each in module.parameters()]


@case
def a_whole_step_of_training(wrap: Compile) -> Any:
    """Forward, backward and update in one function, with what `zero_grad` leaves."""
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)

    def step(x: Any, labels: Any, to_none: bool) -> Any:
        optimizer.zero_grad(set_to_none=to_none)
        loss = F.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, x, labels = wrap(step), torch.randn(6, 4), torch.randint(0, 2, (6,))
    losses = [run(x, labels, to_none) for to_none in (True, True, False)]
    return losses, list(module.state_dict().values())


@case
def averages_of_weights(wrap: Compile) -> Any:
    module = nn.Linear(4, 3)
    average = [each.detach().clone() for each in module.parameters()]

    @torch.no_grad()
    def update() -> None:
        for own, each in zip(average, module.parameters(), strict=True):
            own.lerp_(each, 0.1)

    run = wrap(update)
    for _ in range(3):
        run()
        with torch.no_grad():
            module.weight.add_(1)
    return average


@case
def weights_by_parametrization(wrap: Compile) -> Any:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    x = torch.randn(5, 4)
    y = wrap(module)(x)
    return y, gradients(y, *module.parameters())


@case
def modules_called_by_their_functions(wrap: Compile) -> Any:
    module, x = nn.Linear(4, 3), torch.randn(5, 4)
    values = {name: each.detach() * 2 for name, each in module.named_parameters()}
    loss = wrap(lambda values, x: torch.func.functional_call(module, values, x).square().sum())
    return loss(values, x), wrap(torch.func.grad(lambda v, x: torch.func.functional_call(module, v, x).sum()))(
        values, x
    )


@case
def derivatives_forward_and_in_matrices(wrap: Compile) -> Any:
    x, dx = torch.randn(4), torch.randn(4)
    forward = wrap(lambda x, dx: torch.func.jvp(lambda x: x.sin() * x.sum(), (x,), (dx,)))(x, dx)
    jacobian = wrap(lambda x: torch.func.jacrev(lambda x: x.exp() * x.sum())(x))(x)
    return forward, jacobian, wrap(lambda x: torch.func.hessian(lambda x: (x**3).sum())(x))(x)
