"""Bound calls with the result in a new place at every run."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from sublet.integrations.torch.kernels.bound_call import OpaquePartError, template_of
from sublet.runtime.kernel import CallSequence

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sublet.integrations.torch.compile import caller_outputs  # noqa: E402
from tests.integrations.torch.laid import laid  # noqa: E402
from tests.integrations.torch.mixed_grid import LAYERS  # noqa: E402


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


class Downsample(torch.nn.Module):
    """A normalisation of the channels, in the last axis, and a convolution without overlaps, as in ConvNeXt."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(channels)
        self.layer = torch.nn.Conv2d(channels, 256, window, window)

    def forward(self, x: Any) -> Any:
        return self.layer(self.norm(x).permute(0, 3, 1, 2))


NETWORKS: dict[str, Any] = {
    "no image": lambda: (
        torch.nn.Sequential(torch.nn.Conv1d(64, 64, 3), torch.nn.GroupNorm(8, 64), torch.nn.Linear(62, 128)),
        torch.randn(3, 64, 64),
    ),
    "image": lambda: (Downsample(32, 2), torch.randn(2, 16, 16, 32)),
    "image with as many channels as columns": lambda: (Downsample(4, 4), torch.randn(2, 16, 16, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_every_step_lie_in_memory_of_their_own(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = NETWORKS[name]()
    compiled = torch.compile(module, backend="sublet")
    kept, right = [], []
    for factor in (1.0, 2.0, 3.0, 4.0):
        for run, found in ((compiled, kept), (module, right)):
            module.zero_grad(set_to_none=True)
            (run(x) ** 2).sum().mul(factor).backward()
            found.append([each.grad for each in module.parameters()])
    for grads, expected in zip(kept, right, strict=True):
        for grad, eager in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, eager, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("last", [False, True], ids=["as given", "last axis first"])
@pytest.mark.parametrize("name", LAYERS)
def test_later_steps_give_the_gradients_of_the_first(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step binds kernels. Later steps only replace the places, here for gradients of any size."""
    monkeypatch.setattr(caller_outputs, "MIN_COMPUTED_BYTES", 1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, draw = LAYERS[name]
    module, x = make().train(), draw()
    x = laid(x, "last") if last else x
    state, compiled, steps = copy.deepcopy(module.state_dict()), torch.compile(module, backend="sublet"), []
    for _ in range(3):
        module.load_state_dict(state)
        module.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        given = x.clone().requires_grad_() if x.is_floating_point() else x
        result = compiled(given)
        whole = result[0] if isinstance(result, tuple) else result
        whole.square().sum().backward()
        steps.append([whole.detach(), given.grad, *(each.grad for each in module.parameters())])
    for later in steps[1:]:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(steps[0], later, strict=True))
