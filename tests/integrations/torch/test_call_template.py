"""Bound calls with the result in a new place at every run."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest

from sublet.integrations.torch.kernels.bound_call import OpaquePartError, template_of
from sublet.runtime.kernel import CallSequence

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def add_doubled(place: Any, function: Any) -> None:
    place.add_(function(), alpha=2)


def calls_into(place: Any, x: Any) -> list[Any]:
    """Calls of every kind that a template knows; each alone writes all of `place`."""
    return [
        partial(torch.mm, x, x, out=place),
        partial(torch.ops.aten.mm.out, x, x, out=place),
        partial(place.copy_, x),
        CallSequence([place.zero_, partial(torch.add, x[1:], 1, out=place[1:]), partial(place[0].fill_, 3)]),
        CallSequence([partial(place.fill_, 1), partial(add_doubled, place.t(), partial(torch.add, x, place))]),
        partial(torch.ops.aten.split_copy.Tensor_out, x, 2, out=[place[:2], place[2:]]),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_call_runs_in_a_new_place(number: int) -> None:
    x, places = torch.randn(4, 4), [torch.full((4, 4), 9.0) for _ in range(2)]
    template = template_of(calls_into(places[0], x)[number], places[0])
    calls_into(places[1], x)[number]()
    new = torch.full((20,), 9.0)[4:].view(4, 4)
    assert template is not None
    template(new)()
    assert torch.equal(new, places[1])
    assert (places[0] == 9).all()


def test_a_template_keeps_no_reference_to_the_first_place() -> None:
    x, place = torch.randn(4, 4), torch.empty(4, 4)
    templates = [template_of(call, place) for call in calls_into(place, x)]
    left = weakref.ref(place)
    del place
    gc.collect()
    assert left() is None
    assert None not in templates


def test_a_call_that_may_hide_tensors_has_no_template() -> None:
    place = torch.empty(4, dtype=torch.float32)
    for call in (lambda: place.zero_(), partial(print, object()), partial(place.view(torch.int32).fill_, 1)):
        with pytest.raises(OpaquePartError):
            template_of(call, place)
    assert template_of(partial(torch.add, torch.ones(4), 1), place) is None


def test_gradients_of_every_step_lie_in_memory_of_their_own() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv1d(64, 64, 3), torch.nn.GroupNorm(8, 64), torch.nn.Linear(62, 128))
    compiled, x = torch.compile(module, backend="sublet"), torch.randn(3, 64, 64)
    kept, right = [], []
    for factor in (1.0, 2.0, 3.0, 4.0):
        for run, found in ((compiled, kept), (module, right)):
            module.zero_grad(set_to_none=True)
            (run(x) ** 2).sum().mul(factor).backward()
            found.append([each.grad for each in module.parameters()])
    for grads, expected in zip(kept, right, strict=True):
        for grad, eager in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, eager, rtol=1e-4, atol=1e-3)
