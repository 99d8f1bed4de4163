"""Random functions on tensors, with views, in-place operators, changed inputs and outputs that are the same memory.

    python -m tests.integrations.torch.fuzz --programs 500

Each is run by PyTorch and as `torch.compile(backend="sublet")` would run it; outputs, changed inputs and gradients must
be equal, and outputs once more in a poisoned arena, and a sample at a time where that may be. With `--device` it runs
as on a device, poisoned too; with `--recorded` calls are recorded, and it runs three times.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager
from torch.fx.experimental.proxy_tensor import make_fx

import sublet
from sublet.integrations.torch.compile.arena_pool import ArenaPool
from sublet.integrations.torch.compile.backend import DEFAULT_OPTIONS, backend
from sublet.integrations.torch.compile.joint_graph import capture_program
from tests.integrations.torch import on_device
from tests.integrations.torch.on_device import recorded

Function = Callable[..., Any]
TWO_WAYS = "PyTorch computes it in two ways"
FINE = ("equal", "not traced", TWO_WAYS)
NO_PROGRAM = (RuntimeError, IndexError, ValueError, TypeError)
"""What PyTorch raises for steps that do not fit, such as the length of a tensor without axes."""

Step = tuple[str, int, int, tuple[Any, ...]]

ROWS, COLUMNS = 4, 6


class Program:
    """A random function of three matrices, written as steps on a list of tensors."""

    def __init__(self, seed: int, changes_inputs: bool) -> None:
        self._draw = random.Random(seed)
        self._changes = changes_inputs
        self.steps = [self._step() for _ in range(self._draw.randint(4, 14))]
        self._outputs = [self._draw.random() for _ in range(self._draw.randint(1, 4))]

    def _step(self) -> Step:
        kind = self._draw.choice([*UNARY, *BINARY, *VIEWS, *INPLACE, *OTHER])
        return kind, self._draw.randrange(1 << 20), self._draw.randrange(1 << 20), (self._draw.random(),)

    def __call__(self, *inputs: Any) -> Any:
        pool = list(inputs)
        for kind, one, other, (part,) in self.steps:
            a, b = pool[one % len(pool)], pool[other % len(pool)]
            if kind in UNARY:
                pool.append(UNARY[kind](a))
            elif kind in BINARY:
                pool.append(BINARY[kind](a, alike(b, a)))
            elif kind in VIEWS:
                pool.append(VIEWS[kind](a, part))
            elif kind in OTHER:
                pool.append(OTHER[kind](a, alike(b, a), part))
            elif self._changes or one % len(pool) >= len(inputs):
                if any(shared(a, each) for each in inputs) and not self._changes:
                    continue
                INPLACE[kind](a, alike(b, a))
        return [pool[int(at * len(pool))] for at in self._outputs]


def shared(one: Any, other: Any) -> bool:
    """Whether two tensors are of the same memory, as far as tracing tells."""
    return bool(torch._C._is_alias_of(one, other))


def alike(x: Any, like: Any) -> Any:
    """Elements of x in the shape of another tensor, as few of them as it takes, repeated if there are too few."""
    flat = x.reshape(-1)
    count = like.numel()
    while flat.numel() < count:
        flat = torch.cat([flat, flat])
    return flat[:count].reshape(like.shape)


def entropy(x: Any) -> Any:
    """The cross entropy of each row, some of which have no label."""
    return torch.nn.functional.cross_entropy(x, x.argmin(-1), reduction="none", ignore_index=1)


UNARY: dict[str, Function] = {
    "relu": torch.relu,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "square": torch.square,
    "double": lambda x: x * 2,
    "plus": lambda x: 1 + x,
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(),
    "softmax": lambda x: torch.softmax(x, -1),
    "entropy": lambda x: entropy(x.reshape(-1, x.shape[-1]))[None],
    "sum": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(0),
    "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "cumsum": lambda x: x.cumsum(0),
    "compare": lambda x: (x > 0.1).float(),
    "sort": lambda x: x.sort(-1).values,
}
BINARY: dict[str, Function] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": lambda a, b: torch.sub(a, b, alpha=0.5),
    "max": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "bmm": lambda a, b: a.flatten(1) @ b.flatten(1).t() if a.dim() > 1 else a * b,
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.3),
}
VIEWS: dict[str, Function] = {
    "transpose": lambda x, part: x.transpose(0, -1),
    "rows": lambda x, part: x[int(part * len(x)) :],
    "row": lambda x, part: x[int(part * len(x))].unsqueeze(0),
    "columns": lambda x, part: x[..., int(part * x.shape[-1]) :],
    "steps": lambda x, part: x[::2],
    "flat": lambda x, part: x.reshape(-1)[None],
    "expand": lambda x, part: x[:1].expand(3, *x.shape[1:]),
    "squeeze": lambda x, part: x.unsqueeze(1).squeeze(1),
    "diagonal": lambda x, part: x.flatten(1).diagonal()[None] if x.dim() > 1 else x,
    "halves": lambda x, part: torch.chunk(x, 2, -1)[int(part * 2) % len(torch.chunk(x, 2, -1))],
}
INPLACE: dict[str, Function] = {
    "add_": lambda a, b: a.add_(b) if writable(a) else a,
    "mul_": lambda a, b: a.mul_(0.5) if writable(a) else a,
    "relu_": lambda a, b: a.relu_() if writable(a) else a,
    "copy_": lambda a, b: a.copy_(b) if writable(a) else a,
    "fill_": lambda a, b: a[..., :1].fill_(0.25) if writable(a) else a,
    "set row": lambda a, b: a.__setitem__(0, b[-1]) if writable(a) else a,
}
OTHER: dict[str, Function] = {
    "cat": lambda a, b, part: torch.cat([a, b] if part < 0.5 else [a, a, b], 0 if part < 0.7 else -1),
    "stack": lambda a, b, part: torch.stack([a, b]).sum(0),
    "index": lambda a, b, part: a[torch.tensor([0, len(a) - 1, 0])],
    "gather": lambda a, b, part: a.index_select(0, torch.arange(len(a)).flip(0)),
    "pad": lambda a, b, part: torch.nn.functional.pad(a, (1, 0)),
    "scatter": lambda a, b, part: a.index_add(0, torch.tensor([0]), b[:1]),
}


def writable(x: Any) -> bool:
    """Whether each element has memory of its own."""
    return all(step for step, n in zip(x.stride(), x.shape, strict=True) if n > 1)


def equal(found: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether tensors agree, but for the order of additions."""
    return all(
        (one is None) == (other is None)
        and (one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True))
        for one, other in zip(found, right, strict=True)
    )


def given(seed: int) -> list[Any]:
    """The matrices that a program is called with."""
    torch.manual_seed(seed)
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, ROWS), torch.randn(2, ROWS)]


def judge(seed: int, compiler: Function = backend) -> str:
    """How a program did: "equal", "not traced", PyTorch's own fault, or what is wrong."""
    gradients = bool(seed % 2)
    program = Program(seed, changes_inputs=not gradients)
    if gradients:
        return _judge_gradients(program, seed, compiler)
    rights, founds, samples = given(seed), given(seed), given(seed)
    with torch.no_grad():
        try:
            right = program(*rights)
            traced = make_fx(program)(*samples)
        except NO_PROGRAM:
            return "not traced"
        run = compiler(traced, given(seed))
        for _ in range(_earlier(compiler)):
            run(*given(seed))
        found = run(*founds)
    if not equal([*found, *founds], [*right, *rights]):
        if _computed_in_two_ways(program, seed, [*found, *founds], [*right, *rights]):
            poisoned = _judge_poisoned(program, seed)
            return TWO_WAYS if poisoned == "equal" else poisoned
        return "an output differs" if not equal(found, right) else "a changed input differs"
    return _judge_poisoned(program, seed) if compiler is backend else "equal"


def _earlier(compiler: Function) -> int:
    """Runs before the one that counts: what is recorded in the second is replayed in the third."""
    return 2 if compiler is recorded else 0


def _computed_in_two_ways(program: Program, seed: int, found: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether PyTorch's own compiler without kernels (`aot_eager`) gives what we do, and not what eager does: where an
    operator writes over a part of what it reads, eager's results depend on the order of elements.
    """
    inputs = given(seed)
    with torch.no_grad():
        results = aot_eager(make_fx(program)(*given(seed)), given(seed))(*inputs)
    ways = [*results, *inputs]
    return not equal(ways, right) and equal(found, ways)


def _judge_poisoned(program: Program, seed: int) -> str:
    """The program without changes of inputs, in a poisoned arena."""
    with torch.no_grad():
        functional = torch.func.functionalize(lambda *inputs: program(*(each.clone() for each in inputs)))
        args = given(seed)
        right = functional(*given(seed))
        traced = make_fx(functional, tracing_mode="fake")(*args)
    pool = ArenaPool(capture_program(traced, None, (), {}), args, replace(DEFAULT_OPTIONS, alignment=1))
    arena = pool.lease().arena
    piece = pool.captured.passes[0]
    inputs = {tensor.value.name: args[position] for position, tensor in piece.arguments.items()}
    sublet.run_poisoned(arena.executable, inputs)
    found = pool.results_of_pass(arena, 0, args)
    if not equal(found, right):
        return "an output differs in a poisoned arena"
    with torch.no_grad():
        found = backend(traced, args, {"samples": 1})(*args)
    return "equal" if equal(found, right) else "an output differs, computed a sample at a time"


def _judge_gradients(program: Program, seed: int, compiler: Function) -> str:
    """With several calls in flight, which share memory where that is less; one where it is recorded after others."""
    count = 1 if _earlier(compiler) else 3
    rights, *calls = ([each.requires_grad_() for each in given(seed)] for _ in range(1 + count))
    try:
        right = program(*rights)
        wanted = _gradients(right, rights)
        traced = make_fx(program)(*given(seed))
    except NO_PROGRAM:
        return "not traced"
    run = compiler(traced, [each.requires_grad_() for each in given(seed)])
    for _ in range(_earlier(compiler)):
        args = [each.requires_grad_() for each in given(seed)]
        _gradients(run(*args), args)
    results = [run(*founds) for founds in calls]
    for found in results:
        if not equal([each.detach() for each in found], [each.detach() for each in right]):
            return "an output differs"
    for number in (1, 2, 0)[-count:]:
        if not equal(_gradients(results[number], calls[number]), wanted):
            return "a gradient differs"
    return "equal"


def _gradients(outputs: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Those of the sum of the squares of all outputs."""
    squares = [(each * each).sum() for each in outputs if each.requires_grad]
    return torch.autograd.grad(squares, inputs, allow_unused=True) if squares else ()


def main() -> None:
    """Judge programs, and tell each that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--device", dest="compiler", action="store_const", const=on_device.backend, default=backend)
    parser.add_argument("--recorded", dest="compiler", action="store_const", const=recorded)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    limits = {
        "joint_partition": "MIN_RECOMPUTED_BYTES",
        "fx_queries": "MIN_RECOMPUTED_BYTES",
        "shared_scratch": "MIN_SAVED_BYTES",
    }
    for module, limit in limits.items():  # tensors of any size are computed again, memory is shared
        setattr(sys.modules[f"sublet.integrations.torch.compile.{module}"], limit, 1)
    counts: dict[str, int] = {}
    try:
        for seed in range(asked.first, asked.first + asked.programs):
            verdict = judge(seed, asked.compiler)
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict not in FINE:
                print(f"seed {seed}: {verdict}", flush=True)
    finally:
        print(counts)
    raise SystemExit(bool(counts.keys() - {*FINE}) or not counts.get("equal"))


if __name__ == "__main__":
    main()
