"""Tests of the gradients of poolings: no element of the image is read, so no image is saved for its shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from sublet.integrations.torch.compile import backend  # noqa: E402
from sublet.integrations.torch.compile.compile_report import report  # noqa: E402
from sublet.integrations.torch.compile.joint_budget import saved_bytes  # noqa: E402
from sublet.integrations.torch.compile.joint_partition import partition_joint  # noqa: E402
from sublet.integrations.torch.dialect import UNREAD_ARGUMENTS  # noqa: E402
from tests.integrations.torch.cases import weights_after_steps  # noqa: E402

A, F = torch.ops.aten, torch.nn.functional
WINDOWS = ([3, 3], [2, 2], [1, 1])
CUBES = ([3, 3, 3], [2, 2, 2], [1, 1, 1])


def with_indices(name: str, *rest: object) -> Callable[[torch.Tensor], tuple[torch.Tensor, Callable]]:
    """Return x -> the pooled image, and image -> the gradient by the image, for a gradient of the pooled image."""

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, Callable]:
        y, indices = getattr(A, name)(x, *rest)
        gradient = getattr(A, f"{name}_backward")
        return y, lambda dy, image, **out: gradient(dy, image, *rest * (len(rest) > 1), indices, **out)

    return pool


def without_indices(name: str, *rest: object) -> Callable[[torch.Tensor], tuple[torch.Tensor, Callable]]:
    def pool(x: torch.Tensor) -> tuple[torch.Tensor, Callable]:
        inner = rest[1:] if name.startswith("_") else rest
        return getattr(A, name)(x, *rest), lambda dy, image, **out: getattr(A, f"{name}_backward")(
            dy, image, *inner, **out
        )

    return pool


POOLS = {
    "max_pool2d_with_indices_backward": (2, with_indices("max_pool2d_with_indices", *WINDOWS, [1, 1], False)),
    "max_pool3d_with_indices_backward": (3, with_indices("max_pool3d_with_indices", *CUBES, [1, 1, 1], False)),
    "adaptive_max_pool2d_backward": (2, with_indices("adaptive_max_pool2d", [3, 4])),
    "adaptive_max_pool3d_backward": (3, with_indices("adaptive_max_pool3d", [3, 4, 2])),
    "avg_pool2d_backward": (2, without_indices("avg_pool2d", *WINDOWS, False, True, None)),
    "avg_pool3d_backward": (3, without_indices("avg_pool3d", *CUBES, False, True, None)),
    "_adaptive_avg_pool2d_backward": (2, without_indices("_adaptive_avg_pool2d", [3, 4])),
    "_adaptive_avg_pool3d_backward": (3, without_indices("_adaptive_avg_pool3d", [3, 4, 2])),
}


def image_of(axes: int, last: bool, dtype: torch.dtype) -> torch.Tensor:
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    x = torch.randn(3, 5, *(11, 9, 8)[:axes]).to(dtype)
    return x.contiguous(memory_format=formats[axes]) if last else x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
@pytest.mark.parametrize("name", [each.removesuffix(".default") for each in UNREAD_ARGUMENTS])
def test_a_gradient_reads_no_element_of_the_image(name: str, last: bool, dtype: torch.dtype) -> None:
    axes, pool = POOLS[name]
    if name == "avg_pool3d_backward" and dtype is torch.bfloat16:
        pytest.skip("PyTorch has no such kernel")
    x = image_of(axes, last, dtype)
    y, gradient = pool(x)
    dy = torch.randn_like(y)
    expected = gradient(dy, x)
    undefined = torch.full_like(x, torch.nan)
    assert torch.equal(gradient(dy, undefined), expected)
    if "grad_input" in getattr(A, name).overloads() and expected.stride() == x.stride():  # may overwrite the image
        assert torch.equal(gradient(dy, undefined, grad_input=undefined), expected)


LAYERS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "average": lambda x: F.avg_pool2d(x, 2),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 7),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 7),
}


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_image_of_a_pooling_is_not_saved(layer: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is 4 times as large as the pooled image, and is read by no other gradient."""
    torch._dynamo.reset()
    x = image_of(2, False, torch.float32).repeat(2, 2, 4, 4)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    weight = torch.randn(24, 10, 3, 3, requires_grad=True)

    def network(x: torch.Tensor) -> torch.Tensor:
        return LAYERS[layer](F.conv2d(x, weight, padding=1)).square()

    def divide(*args: object, **options: object) -> object:
        graphs = partition_joint(*args, **options)
        saved.append(saved_bytes(graphs[0], options["num_fwd_outputs"]))
        return graphs

    saved: list[int] = []
    monkeypatch.setattr(backend, "partition_joint", divide)
    gradients, before = [], len(report())
    for run in (network, torch.compile(network, backend="sublet")):
        gradients += torch.autograd.grad(run(x).sum(), weight)
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-3)
    (record,) = report()[before:]
    assert record.plan is not None, record.reason
    assert saved[0] < F.conv2d(x, weight, padding=1).nbytes


def test_a_training_step_computes_the_gradients_of_poolings() -> None:
    given, trained = (torch.randn(4, 3, 32, 32), torch.randn(4, 8)), []
    for planned in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.MaxPool2d(2),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        )
        trained.append(weights_after_steps(module, F.mse_loss, *given, run=None if planned else module))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*trained, strict=True))
