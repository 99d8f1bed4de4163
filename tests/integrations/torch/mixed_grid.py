"""Layers in six precisions, compiled beside eager: values, gradients, statistics, types and strides.

    python -m tests.integrations.torch.mixed_grid [--layers BatchNorm2d,LSTM] [--styles "autocast bf16"] [--part 0/2]

A case is a layer, a style (f32, a module in bf16, f16 or f64, autocast to bf16 or f16), a mode and a layout of the
inputs. A compiled tensor may lie at most four times as far from the same layer in f64 as eager's tensor lies, and a
rounding error of the style. Types, strides and missing gradients must be eager's. Where eager PyTorch raises, so must
the compiled layer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.integrations.torch.laid import laid

ALLOWED = 4
ZERO = 0.01
"""Of the largest element of all tensors of a run: a tensor below it, as the gradient of a bias before a batch norm, is
held to the rounding errors of that much."""
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
"""Of the largest element of a tensor, by the precision that a style computes in."""

STYLES: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "f32": (torch.float32, None),
    "bf16": (torch.bfloat16, None),
    "f16": (torch.float16, None),
    "f64": (torch.float64, None),
    "autocast bf16": (torch.float32, torch.bfloat16),
    "autocast f16": (torch.float32, torch.float16),
}
"""The type of module and inputs, and the type that autocast computes in."""

MODES = ("training", "evaluation", "inference")
"""In evaluation gradients are computed too."""

LAYOUTS = ("as given", "last")
SEED = 5


class Attended(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)


class Judged(nn.Module):
    """A linear layer with its cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return nn.functional.cross_entropy(self.last(x), torch.tensor([0, 3, 4, 3], device=x.device))


def _normal(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def _indices(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, 9, shape)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "Linear": (lambda: nn.Linear(8, 6), _normal(4, 8)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), _normal(3, 4, 9)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), _normal(3, 4, 7, 7)),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 3), _normal(2, 2, 5, 5, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), _normal(2, 4, 5, 5)),
    "BatchNorm1d": (lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)), _normal(5, 8)),
    "BatchNorm2d": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), _normal(3, 3, 7, 7)),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6)), _normal(5, 8)),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(8, 6), nn.RMSNorm(6)), _normal(5, 8)),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), _normal(2, 3, 7, 7)),
    "InstanceNorm2d": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)),
        _normal(2, 3, 7, 7),
    ),
    "LocalResponseNorm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.LocalResponseNorm(2)), _normal(2, 3, 7, 7)),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4)), _indices(3, 5)),
    "EmbeddingBag": (lambda: nn.Sequential(nn.EmbeddingBag(9, 8, mode="sum"), nn.Linear(8, 4)), _indices(3, 5)),
    "MultiheadAttention": (Attended, _normal(2, 5, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), _normal(2, 5, 8)),
    "LSTM": (lambda: nn.LSTM(8, 6), _normal(4, 2, 8)),
    "GRU": (lambda: nn.GRU(8, 6), _normal(4, 2, 8)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(8, 6), nn.PReLU(6)), _normal(4, 8)),
    "GELU": (lambda: nn.Sequential(nn.GELU(), nn.Linear(8, 6)), _normal(4, 8)),
    "Softmax": (lambda: nn.Sequential(nn.Linear(8, 6), nn.Softmax(-1)), _normal(4, 8)),
    "CrossEntropy": (Judged, _normal(4, 8)),
    "Dropout": (lambda: nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.4), nn.Linear(6, 6)), _normal(4, 8)),
}
"""How a layer and its input are made."""

RANDOM = ("Dropout",)
"""In f64 these draw other numbers, so that eager's tensors count as exact."""


@dataclass(frozen=True)
class Case:
    """One cell of the grid."""

    layer: str
    style: str
    mode: str
    layout: str


@dataclass(frozen=True)
class Run:
    """What a layer gave: tensors by name, None for a missing gradient; or the error that it raised."""

    tensors: dict[str, torch.Tensor | None]
    error: str = ""


def cases() -> Iterator[Case]:
    """Yield all cells of the grid."""
    return itertools.starmap(Case, itertools.product(LAYERS, STYLES, MODES, LAYOUTS))


def difference(case: Case) -> str:
    """Return what differs between the compiled layer and the eager one; "" if nothing does.

    A layer that eager PyTorch computes by another path than it traces, as a transformer's layer in inference, is held
    to PyTorch's `aot_eager`, which runs what is traced.
    """
    torch.manual_seed(SEED)
    make, draw = LAYERS[case.layer]
    module, x = make(), draw()
    dtype, lower = STYLES[case.style]
    module, x = module.to(dtype), _to(x, dtype)
    eager, compiled = _run(module, x, case, lower), _run(module, x, case, lower, backend="sublet")
    random = case.layer in RANDOM and case.mode == "training"
    exact = None if random else _run(copy.deepcopy(module).double(), _to(x, torch.float64), case, None)
    rounding = ROUNDING[lower or dtype] * (ALLOWED if random else 1)
    found = _difference(compiled, eager, exact or eager, rounding)
    if not found:
        return ""
    traced = _run(module, x, case, lower, backend="aot_eager")
    return found if _difference(compiled, traced, exact or traced, rounding) else ""


def _difference(compiled: Run, right: Run, exact: Run, rounding: float) -> str:
    if right.error or compiled.error:
        same = bool(right.error) == bool(compiled.error)
        return "" if same else f"raises {compiled.error or 'nothing'}, eagerly {right.error or 'nothing'}"
    least = ZERO * max(map(_largest, exact.tensors.values()))
    for name, tensor in right.tensors.items():
        wanted = exact.tensors[name]
        found = _compared(compiled.tensors[name], tensor, wanted, rounding * max(_largest(wanted), least))
        if found:
            return f"{name}: {found}"
    return ""


def _to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _run(module: nn.Module, x: torch.Tensor, case: Case, lower: torch.dtype | None, backend: str = "") -> Run:
    module, x = copy.deepcopy(module), laid(x, case.layout).detach().clone()
    module.train(case.mode == "training")
    torch._dynamo.reset()
    called = torch.compile(module, backend=backend) if backend else module
    trained = case.mode != "inference"
    x.requires_grad_(trained and x.is_floating_point())
    cast = torch.autocast("cpu", lower) if lower is not None else contextlib.nullcontext()
    torch.manual_seed(SEED)
    tensors: dict[str, torch.Tensor | None] = {}
    try:
        with torch.set_grad_enabled(trained), cast:
            result = called(x)
        several = _flat(result)
        if trained:
            sum((each * _slope(each)).sum() for each in several if each.requires_grad).backward()
    except Exception as error:
        return Run({}, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")
    tensors |= {f"result {i}": each.detach() for i, each in enumerate(several)}
    tensors["the input's gradient"] = x.grad
    tensors |= {f"the gradient of {name}": each.grad for name, each in module.named_parameters()}
    tensors |= dict(module.named_buffers())
    return Run(tensors)


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [each for inner in result if inner is not None for each in _flat(inner)]


def _slope(x: torch.Tensor) -> torch.Tensor:
    """Return the gradient that a result is given: another number for each element."""
    count = torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)
    return (torch.cos(count) + 0.1 * (count % 3)).to(x.dtype)


def _largest(x: torch.Tensor | None) -> float:
    return 0.0 if x is None or not x.numel() else float(x.double().abs().max())


def _compared(
    found: torch.Tensor | None, right: torch.Tensor | None, exact: torch.Tensor | None, rounding: float
) -> str:
    """Return how a compiled tensor differs from eager's, "" where it is close enough to f64."""
    if found is None or right is None or exact is None:
        return "" if found is None and right is None else "no gradient on one side"
    lies = [(each.dtype, tuple(each.shape), _strides(each)) for each in (found, right)]
    if lies[0] != lies[1]:
        return f"is {lies[0]}, eagerly {lies[1]}"
    ours, theirs = (_largest(each.double() - exact.double()) for each in (found, right))
    return "" if ours <= ALLOWED * theirs + rounding else f"is {ours:.3g} from f64, eagerly {theirs:.3g}"


def _strides(x: torch.Tensor) -> list[int]:
    """Return the strides of the axes with more than one element."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid, and print every cell that differs and every graph that is left to PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--styles", default=",".join(STYLES))
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 are halves of the cells")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    part, parts = map(int, asked.part.split("/"))
    layers, styles = asked.layers.split(","), asked.styles.split(",")
    chosen = [each for each in cases() if each.layer in layers and each.style in styles][part::parts]
    wrong, left = 0, Counter[str]()
    for case in chosen:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = difference(case)
        left.update(str(each.message) for each in caught if "leaves a graph" in str(each.message))
        if found:
            wrong += 1
            print(f"{case.layer}, {case.style}, {case.mode}, {case.layout}: {found}", flush=True)
    for reason, count in left.most_common():
        print(f"{count} times: {reason}")
    print(f"{len(chosen)} cells, {wrong} differ")
    return int(bool(wrong) or not chosen)


if __name__ == "__main__":
    raise SystemExit(main())
