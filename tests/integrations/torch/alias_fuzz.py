"""Random programs under torch.compile: views, changes in place, aliases, mixed types, several results.

    python -m tests.integrations.torch.alias_fuzz [--count 1500] [--first 0]

Values, gradients, steps and which results share memory are eager's; a change of one result changes the others as
eagerly. A program that eager PyTorch refuses is not counted.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import sublet

Step = Callable[[list[Any]], Any]

UNARY = ("sin", "tanh", "exp", "relu", "neg", "sigmoid", "abs", "square")
CHANGES = ("add_", "mul_", "relu_", "tanh_", "neg_", "sigmoid_")
TYPES = (torch.float32, torch.float64, torch.bfloat16)


def _view(draw: random.Random, shape: tuple[int, ...]) -> Step | None:
    """A view of a tensor of this shape, as a function of the tensor."""
    rank = len(shape)
    kinds = ["select", "slice", "step", "unsqueeze", "flatten", "expand"]
    kinds += ["transpose", "split", "chunk", "unbind", "diagonal"] if rank > 1 else []
    kind = draw.choice(kinds)
    axis = draw.randrange(rank) if rank else 0
    if not rank or 0 in shape:
        return None
    n = shape[axis]
    index, begin = draw.randrange(n), draw.randrange(n)
    return {
        "select": lambda x: x.select(axis, index),
        "slice": lambda x: x.narrow(axis, begin, n - begin),
        "step": lambda x: x[(slice(None),) * axis + (slice(begin, None, 2),)],
        "unsqueeze": lambda x: x.unsqueeze(axis),
        "flatten": lambda x: x.flatten(),
        "expand": lambda x: x.unsqueeze(0).expand(2, *shape),
        "transpose": lambda x: x.transpose(0, rank - 1),
        "split": lambda x: torch.split(x, max(1, n // 2), axis)[-1],
        "chunk": lambda x: x.chunk(2, axis)[0],
        "unbind": lambda x: x.unbind(axis)[index],
        "diagonal": lambda x: x.diagonal(0, 0, rank - 1),
    }[kind]


def program(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A random function, and its arguments."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [tuple(draw.choice((1, 2, 3, 4)) for _ in range(draw.choice((1, 2, 2, 3)))) for _ in range(2)]
    dtypes = [draw.choice((torch.float32, torch.float32, torch.float64)) for _ in shapes]
    grads = [draw.random() < 0.6 for _ in shapes]
    given = [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)
        for shape, dtype, grad in zip(shapes, dtypes, grads, strict=True)
    ]
    steps: list[tuple[int, Step]] = []
    values: list[Any] = [torch.empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for _ in range(draw.randint(3, 9)):
        source = draw.randrange(len(values))
        step = _step(draw, values, source)
        if step is None:
            continue
        try:
            values.append(step(values))
        except (RuntimeError, IndexError):
            continue
        steps.append((source, step))
    count = min(len(values), draw.randint(1, 4))
    chosen = [draw.randrange(len(values)) for _ in range(count)]

    def function(*args: Any) -> Any:
        found = list(args)
        for _, step in steps:
            found.append(step(found))
        return [found[i] for i in chosen]

    return function, given


def _step(draw: random.Random, values: list[Any], source: int) -> Step | None:
    kind = draw.choice(["unary", "unary", "view", "view", "view", "change", "binary", "type", "detach", "fresh"])
    if kind == "view":
        view = _view(draw, tuple(values[source].shape))
        return None if view is None else lambda found: view(found[source])
    if kind == "unary":
        name = draw.choice(UNARY)
        return lambda found: getattr(torch, name)(found[source])
    if kind == "change":
        name, number = draw.choice(CHANGES), draw.choice((0.5, 2.0))
        if source < 2:  # a leaf that requires a gradient may not be changed
            return None
        return lambda found: getattr(found[source], name)(*([number] if name in ("add_", "mul_") else []))
    if kind == "binary":
        other = draw.randrange(len(values))
        operator = draw.choice((torch.add, torch.mul, torch.maximum))
        return lambda found: operator(found[source], found[other])
    if kind == "type":
        dtype = draw.choice(TYPES)
        return lambda found: found[source].to(dtype)
    if kind == "detach":
        return lambda found: found[source].detach()
    return lambda found: found[source].sum() + torch.ones(3, dtype=found[source].dtype)


def observed(function: Callable[..., Any], given: list[Any], backend: str | None) -> Any:
    """What a caller sees of the results; an error's type where there is none."""
    torch._dynamo.reset()
    args = [each.detach().clone().requires_grad_(each.requires_grad) for each in given]
    run = torch.compile(function, backend=backend) if backend else function
    results = run(*args)
    places = [each.untyped_storage().data_ptr() for each in (*results, *args)]
    shared = [
        [one == other and each.numel() > 0 for other in places] for one, each in zip(places, results, strict=False)
    ]
    shared += [[one is other for other in results] for one in results]
    about = [(each.shape, _steps(each), each.dtype, each.requires_grad) for each in results]
    values = [each.detach().clone() for each in results]
    losses = [(i + 1) * each.double().sum() for i, each in enumerate(results) if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = [torch.zeros(()) if each.grad is None else each.grad.clone() for each in args]
    with torch.no_grad():
        for each in results:
            if 0 not in _steps(each):
                each.mul_(0.5).add_(1)
    after = [each.detach().clone() for each in (*results, *args)]
    return shared, about, [*values, *gradients, *after]


def _steps(tensor: Any) -> list[int]:
    """The steps that matter: those of an axis of one element differ between PyTorch's own backends."""
    return [step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]


def judge(seed: int) -> str:
    """What becomes of a program: "equal", "left to PyTorch", or "refused by PyTorch". Raises AssertionError."""
    function, given = program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = observed(function, given, None)
            inherited = observed(function, given, "aot_eager")
        except Exception:  # whatever PyTorch itself says no to
            return "refused by PyTorch"
        before = len(sublet.torch.report())
        found = observed(function, given, "sublet")
    fresh = sublet.torch.report()[before:]
    left = any(each.plan is None for each in fresh)
    if _difference(found, wanted):
        why = _difference(found, inherited)
        assert not why, f"seed {seed}: {why}"
        return "as aot_eager, which differs from eager"
    return "left to PyTorch" if left else "equal"


def _difference(found: Any, wanted: Any) -> str:
    """What differs between two observations; "" where nothing does."""
    if found[:2] != wanted[:2]:
        return f"{found[:2]} {wanted[:2]}"
    for mine, right in zip(found[2], wanted[2], strict=True):
        least = 2e-2 if right.dtype == torch.bfloat16 else 1e-4
        if not torch.allclose(mine, right, rtol=least, atol=least, equal_nan=True):
            return f"{mine} {right}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tally: Counter[str] = Counter()
    for seed in range(asked.first, asked.first + asked.count):
        tally[judge(seed)] += 1
    for verdict, count in tally.items():
        print(f"{count:>8} {verdict}")


if __name__ == "__main__":
    main()
