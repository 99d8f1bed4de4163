"""Whether a function of tensors gives what PyTorch gives when Sublet plans it, bit for bit.

It is traced as `torch.compile` traces it and run in an arena, once more in a poisoned one, in two forms: inputs may be
overwritten, or are read once more after the function, and must be what they were.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.compilers import nop
from torch.utils import _pytree as pytree

import sublet
from sublet.base.errors import RunError, SubletError
from sublet.integrations.torch.compile.arena_pool import ArenaPool, BoundArena
from sublet.integrations.torch.compile.joint_graph import CapturedProgram, capture_program
from sublet.integrations.torch.reader.exported_program import TorchContent, error_summary

Function = Callable[..., Any]

EQUAL, CLOSE, DIFFERENT = "equal", "close", "different"
EAGER, UNTRACED, REFUSED = "refused by PyTorch", "not traced", "refused"
TWO_WAYS = "PyTorch computes it in two ways"
FINE = (EQUAL, CLOSE, TWO_WAYS)
FARTHER = "farther from exact numbers than allowed, in this draw"

ALLOWED = 2.0
"""So many times eager's own distance from exact numbers a result may be off, as in `benchmarks.torch.exactness`."""

DRAWS = (0.9, 0.8, 0.7)
"""Of few numbers eager's may be exact by chance. So a function that is farther off is asked again for inputs that are
so many times as large, and one of these draws has to be close in all its results."""

SEED = 42
"""That of the functions by which PyTorch tests random operators, which a traced program does not set."""


@dataclass(frozen=True)
class Verdict:
    """How a function did.

    kind  one of the words above. "close": other kernels of PyTorch's, or Sublet's, compute than eagerly, and what they
          give is no farther from exact numbers than `Exact` allows in one of some draws. Two ways: eager's, and that
          of the operators that are traced, which is ours
    why   what differs, or what is refused
    over  results that were computed over an input
    """

    kind: str
    why: str = ""
    over: int = 0


def judge(function: Function, inputs: Sequence[Any], contents: bool = True) -> Verdict:
    """Judge a function of tensors; without `contents` only shapes and types count."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = _judge(function, inputs, contents)
        if first.kind != FARTHER:
            return first
        draws = (_judge(function, [_scaled(each, scale) for each in inputs], contents) for scale in DRAWS)
        return replace(first, kind=CLOSE if any(each.kind in FINE for each in draws) else DIFFERENT)


def _judge(function: Function, inputs: Sequence[Any], contents: bool) -> Verdict:
    given = [_own(each) for each in inputs]
    try:
        right = _seeded(_flat(function), given)
    except Exception as error:  # whatever a kernel of PyTorch's says of its arguments
        return Verdict(EAGER, error_summary(error))
    exact = Exact(function, inputs)
    first = _judged(function, inputs, given, right, exact, False, contents)
    if first.kind not in FINE:
        return first
    second = _judged(function, inputs, given, right, exact, True, contents)
    return second if first.kind == EQUAL or second.kind not in FINE else first


def _scaled(tensor: Any, scale: float) -> Any:
    floating = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.dtype.is_floating_point
    return tensor * scale if floating else tensor


def _judged(
    function: Function,
    inputs: Sequence[Any],
    after: Sequence[Any],
    right: Sequence[Any],
    exact: Exact,
    kept: bool,
    contents: bool,
) -> Verdict:
    """One form of it; `after` is what the function makes of its inputs."""
    flat, wanted = _flat(function), [*right, *(after if kept else [])]
    planned = _Planned()

    def form(*args: Any) -> list[Any]:
        return [*flat(*args), *([each.clone() for each in args] if kept else [])]

    run = aot_function(form, fw_compiler=planned.compile, inference_compiler=planned.compile, dynamic=False)
    worst = Verdict(EQUAL)
    for how in (_run, run_poisoned):
        planned.how, args = how, [_own(each) for each in inputs]
        try:
            founds = _seeded(run, args)
        except RunError as error:
            return Verdict(DIFFERENT, str(error))
        except SubletError as error:
            return Verdict(REFUSED, str(error))
        except Exception as error:  # whatever tracing meets
            if planned.pool is not None:
                raise
            return Verdict(UNTRACED, error_summary(error))
        words = f"{'poisoned, ' * (how is run_poisoned)}{'inputs outlive, ' * kept}"
        for i, (one, other) in enumerate(zip([*founds, *args], [*wanted, *after], strict=True)):
            what = f"result {i}" if i < len(wanted) else f"input {i - len(wanted)}"
            number = i if i < len(right) else len(right) + (i - len(right)) % max(len(after), 1)
            found = _compared(one, other, partial(exact.allows, number), contents or i >= len(right))
            if planned.draws and found.kind in (CLOSE, FARTHER):
                found = Verdict(DIFFERENT, "other numbers are drawn")  # in f64 as well
            if found.kind in (DIFFERENT, FARTHER):
                if not same(one, _as_traced(form, inputs)[i]):
                    return Verdict(found.kind, f"{words}{what}: {found.why}")
                found = Verdict(TWO_WAYS, found.why)
            worst = found if found.kind in (CLOSE, TWO_WAYS) else worst
    assert planned.pool is not None
    return Verdict(worst.kind, worst.why, _over_inputs(planned.pool))


def _as_traced(form: Function, inputs: Sequence[Any]) -> list[Any]:
    """What PyTorch's own operators give as they are traced, and what becomes of the inputs: the backend `aot_eager`."""
    args = [_own(each) for each in inputs]
    return [*_seeded(aot_function(form, fw_compiler=nop, inference_compiler=nop, dynamic=False), args), *args]


class _Planned:
    """Compiles one graph, and runs it as is asked for.

    draws   whether an operator of the graph draws numbers
    """

    def __init__(self) -> None:
        self.pool: ArenaPool | None = None
        self.draws = False
        self.how: Callable[[ArenaPool, Sequence[Any]], list[Any]] = _run

    def compile(self, graph: Any, example: Sequence[Any]) -> Function:
        """What AOTAutograd calls."""
        tags = [getattr(node.target, "tags", ()) for node in graph.graph.nodes]
        self.draws = any(torch.Tag.nondeterministic_seeded in each for each in tags)

        def call(*args: Any) -> list[Any]:
            if self.pool is None:
                self.pool = ArenaPool(capture_program(graph, None, (), {}), args, sublet.Options(alignment=64))
            return self.how(self.pool, args)

        return make_boxed_func(call)


def _flat(function: Function) -> Function:
    """The function giving a list of the tensors that it gives."""

    def flat(*args: Any) -> list[Any]:
        return [each for each in pytree.tree_leaves(function(*args)) if isinstance(each, torch.Tensor)]

    return flat


def _own(tensor: Any) -> Any:
    """A copy that lies as the tensor does, if each of its elements has memory of its own."""
    if tensor.layout != torch.strided or not all(
        s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1
    ):
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _seeded(function: Function, args: Sequence[Any]) -> Any:
    torch.manual_seed(SEED)
    return function(*args)


def _run(pool: ArenaPool, args: Sequence[Any]) -> list[Any]:
    flight = pool.lease()
    return pool.run_pass(flight.arena, 0, args)


def run_poisoned(pool: ArenaPool, args: Sequence[Any]) -> list[Any]:
    """Return the results of the first pass, run in a poisoned arena."""
    arena: BoundArena = pool.lease().arena
    captured: CapturedProgram = pool.captured
    piece = captured.passes[0]
    given = {
        tensor.value.name: TorchContent(args[position], tensor.spec.shape).array()
        for position, tensor in piece.arguments.items()
    }
    sublet.run_poisoned(arena.executable, given)
    return pool.results_of_pass(arena, 0, args)


def _compared(found: Any, right: Any, allows: Callable[[Any, Any], tuple[bool, str]], contents: bool) -> Verdict:
    if not isinstance(found, torch.Tensor):
        return Verdict(DIFFERENT, f"{found!r} is no tensor")
    if found.shape != right.shape or found.dtype != right.dtype:
        kinds = (f"{each.dtype} {tuple(each.shape)}" for each in (found, right))
        return Verdict(DIFFERENT, "{}, eagerly {}".format(*kinds))
    if not contents or same(found, right):
        return Verdict(EQUAL)
    if not right.dtype.is_floating_point:
        return Verdict(DIFFERENT, f"{int((found != right).sum())} of {right.numel()} elements differ")
    usual = torch.isfinite(right)
    alike = torch.equal(torch.nan_to_num(found[~usual]), torch.nan_to_num(right[~usual]))
    if not alike or not torch.isfinite(found[usual]).all():
        return Verdict(DIFFERENT, "numbers that are not finite differ")
    close, words = allows(found, right)
    return Verdict(CLOSE if close else FARTHER, words)


class Exact:
    """The function in f64, computed when it is asked for.

    What is in f64 is held against eager's numbers. How far these may be off is told by f32: as many roundings.
    """

    def __init__(self, function: Function, inputs: Sequence[Any]) -> None:
        self._function, self._inputs = function, inputs

    @cached_property
    def _wide(self) -> list[Any] | None:
        return self._computed(torch.float64)

    @cached_property
    def _narrow(self) -> tuple[list[Any], list[Any]] | None:
        """In f32, and in f64 from the same numbers."""
        single = self._computed(torch.float32)
        double = self._computed(torch.float32, torch.float64)
        return None if single is None or double is None else (single, double)

    def _computed(self, *dtypes: Any) -> list[Any] | None:
        """Results, and inputs as they are then, of inputs converted to these types one after another."""
        given = []
        for each in self._inputs:
            own = _own(each)
            for dtype in dtypes:
                own = own.to(dtype) if own.dtype.is_floating_point else own
            given.append(own)
        try:
            return [*_seeded(_flat(self._function), given), *given]
        except Exception:  # whatever a kernel says of arguments of other types
            return None

    def allows(self, number: int, found: Any, right: Any) -> tuple[bool, str]:
        """Whether a result, or what has become of an input, is close, in words too."""
        if right.dtype == torch.float64:
            if self._narrow is None:
                return False, f"off by {_distance(found, right):.1e}, and f32 does not tell how much may be"
            single, double = (each[number] for each in self._narrow)
            most = _distance(single, double) * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
            exact, eagers, allowed = right, 0.0, (ALLOWED + 1) * max(most, _rounding(right, right))
        else:
            exact = None if self._wide is None else self._wide[number]
            if exact is None or exact.dtype != torch.float64 or exact.shape != right.shape:
                return False, f"off by {_distance(found, right):.1e}, and f64 does not tell how much may be"
            eagers = _distance(right, exact)
            allowed = ALLOWED * max(eagers, _rounding(exact, right))
        ours = _distance(found, exact)
        return ours <= allowed, f"{ours:.1e} from f64, eagerly {eagers:.1e}; allowed is {allowed:.1e}"


def _distance(one: Any, other: Any) -> float:
    """That of the numbers that are finite."""
    off = one.double() - other.double()
    return float(off[torch.isfinite(off)].norm())


def _rounding(exact: Any, like: Any) -> float:
    """How far rounding to the type of a tensor may bring a result that is computed exactly."""
    return float(exact[torch.isfinite(exact)].norm()) * torch.finfo(like.dtype).eps / 2


def same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bits, but for what NaN they have."""
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    numbers = ~one.isnan()
    return torch.equal(numbers, ~other.isnan()) and all(
        torch.equal(of(one[numbers]), of(other[numbers])) for of in (torch.clone, torch.signbit)
    )


def _over_inputs(pool: ArenaPool) -> int:
    """How many results of calls lie over bytes of an input that ends there."""
    return sum(place.how == "inplace" for place in pool.plan.placements)
