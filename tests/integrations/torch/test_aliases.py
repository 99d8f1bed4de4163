"""Results that share memory eagerly share it here, in training and in inference, at eager's steps and offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sublet  # noqa: F401  # registers the backend

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integrations.torch import alias_fuzz  # noqa: E402

Function = Callable[[Any], Any]


def _with(function: Function) -> Function:
    """A result and the function of it."""
    return lambda a: function(a.sin())


CASES: dict[str, Function] = {
    "changed in place": _with(lambda h: (torch.relu_(h), h)),
    "changed in place, with a view": _with(lambda h: (h.add_(1), h, h.view(-1))),
    "one tensor twice": _with(lambda h: (h, h, h * 1)),
    "views and their base": _with(lambda h: (h, h.t(), h[0])),
    "views alone": _with(lambda h: (h[1:], h.t(), h[0])),
    "split": _with(lambda h: torch.split(h, 2)),
    "chunk": _with(lambda h: h.chunk(2, 1)),
    "unbind": _with(lambda h: h.unbind(0)),
    "unbind and its base": _with(lambda h: (h, *h.unbind(0))),
    "parts that are used": _with(lambda h: (lambda parts: (parts[0] * 2, parts[1], parts[0]))(torch.split(h, 2))),
    "kept for the backward": _with(lambda h: (h, h.exp(), h.exp())),
    "detached": _with(lambda h: (h, h.detach())),
    "a view that is detached": _with(lambda h: (h.detach().t(), h * 2)),
    "expanded": _with(lambda h: (h.sum(0).expand(3, 6), h)),
    "expanded alone": _with(lambda h: h.sum(0).expand(3, 6)),
    "no gradient": _with(lambda h: (h, h > 0, (h > 0).t())),
    "every other column": _with(lambda h: (h[:, ::2], h.cos())),
    "slices of parts": _with(lambda h: [part[:, ::2] for part in torch.split(h, 2)]),
    "diagonal": _with(lambda h: (h.diagonal(), h.unfold(1, 2, 1))),
    "strided": _with(lambda h: (h.as_strided((2, 2), (1, 6)), h)),
    "arguments": lambda a: (a, a.t(), a[0], a * 2),
    "channels last": lambda a: a.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last).sin(),
}


def observed(function: Function, given: Any, backend: str) -> list[Any]:
    """What a caller sees of results: values, memory, objects, steps, gradients, and what a change of one changes."""
    torch._dynamo.reset()
    a = given.detach().clone().requires_grad_(given.requires_grad)
    results = torch.utils._pytree.tree_leaves(torch.compile(function, backend=backend)(a))
    places = [each.untyped_storage().data_ptr() for each in results]
    seen: list[Any] = [
        [[one == other for other in places] for one in places],
        [[one is other for other in results] for one in results],
        [(each.stride(), each.storage_offset(), each.dtype, each.requires_grad) for each in results],
        [each.detach().clone() for each in results],
    ]
    losses = [(i + 1) * each.sum() for i, each in enumerate(results) if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
        seen.append([a.grad])
    with torch.no_grad():
        for each in results:
            if each.stride() == each.contiguous().stride() or 0 not in each.stride():
                each.copy_(each.clone().logical_not())
    return [*seen, [each.detach().clone() for each in results]]


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_results_share_memory_as_eagerly(name: str, trained: bool, device: str) -> None:
    torch.manual_seed(0)
    given = torch.randn(4, 6, requires_grad=trained, device=device)
    wanted, found = (observed(CASES[name], given, backend) for backend in ("eager", "sublet"))
    for right, mine in zip(wanted, found, strict=True):
        for one, other in zip(right, mine, strict=True):
            same = torch.allclose(one, other, atol=1e-6) if isinstance(one, torch.Tensor) else one == other
            assert same, (one, other)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("ignore")
def test_random_programs_are_eagers(seed: int) -> None:
    """A part of `make fuzz`, which runs 1,500 of them."""
    alias_fuzz.judge(seed)
