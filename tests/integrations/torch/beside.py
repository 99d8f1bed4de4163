"""Whether PyTorch's kernels give what it traces: results of these extents, written where they are told, as these lie.

    python -m tests.integrations.torch.beside [--ops add,linalg] [--samples 8]

Every operator of ATen's that the samples of its tests (`op_db`) and their gradients come to, with tensors as they are
given, with axes in the opposite order, and with channels last, is traced and then run, by its `out=` too where there is
one that we use; by that also with each of its operands laid out otherwise than the rest. It must compute the same.
With `--mixed` types of results are compared too, and each operator that takes several tensors of a float type is run
with some of them in another float type, as autocast gives them; operators of `probes.TABLE` are known to differ.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sublet.integrations.torch.dialect import PREFIX
from sublet.integrations.torch.operator_facts import facts_by_name
from sublet.integrations.torch.reader import kernel_probes, operators
from tests.integrations.torch.find_facts import operator
from tests.integrations.torch.laid import LAYOUTS, SEED, laid

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
HALVES = (torch.bfloat16, torch.float16)
MOST = 12
"""Calls of an operator of which operands are laid out otherwise than the rest."""
MIXED = 3
"""Calls of an operator with operands of some types that are run once more with two float types."""
CLOSE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.bfloat16: 0.05}
"""How far results may be from one another, by type: in another layout a kernel adds in another order."""


class Beside(TorchDispatchMode):
    """Traces each operator that runs, and tells where the kernel gives something else.

    wrong   by operator what was found, with an example
    ran     operators that were run by their `out=`
    """

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        self.ran: set[str] = set()
        self._calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator, and compares."""
        results = self._compared(function, args, kwargs or {})
        name = str(function).removeprefix(PREFIX)
        if name in facts_by_name() and facts_by_name()[name].out and self._calls[name] < MOST:
            self._calls[name] += 1
            for given in _one_laid_otherwise((args, kwargs or {})):
                with contextlib.suppress(RuntimeError):  # PyTorch does not take each operand in every layout
                    self._compared(function, *given)
        return results

    def _compared(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        traced = _traced(function, args, kwargs)
        results = function(*args, **kwargs)
        if traced is None or str(function) in operators.PROBED_OPERATORS:
            return results
        name = str(function).removeprefix(PREFIX)
        if name in facts_by_name() and facts_by_name()[name].out:
            self._told(name, traced, results, args, kwargs)
        found = pytree.tree_leaves(results)
        if _draws(function) and name in facts_by_name() and facts_by_name()[name].out:
            steps = [[_steps(each) for each in side] for side in (found, traced)]
            if steps[0] != steps[1]:
                self.wrong.setdefault(name, f"draws in the order of strides {steps[0]}, and {steps[1]} are traced")
        shapes = [[tuple(each.shape) for each in side if isinstance(each, torch.Tensor)] for side in (found, traced)]
        if shapes[0] != shapes[1]:
            self.wrong.setdefault(name, f"gives {shapes[0]}, and {shapes[1]} is traced")
        return results

    def _told(self, name: str, traced: Sequence[Any], results: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Run it by its `out=`, which must compute the results."""
        out = operator(facts_by_name()[name].out)
        names = [each.name for each in out._schema.arguments]
        places = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in traced]
        before = [(each.data_ptr(), each.shape, each.stride()) for each in places]
        told = {key: each for key, each in kwargs.items() if key in names}
        told |= zip([each.name for each in out._schema.arguments if each.is_out], places, strict=True)
        given = pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, args)
        try:
            with torch.inference_mode():
                out(*given, **told)
        except RuntimeError as error:
            self.wrong.setdefault(name, f"{facts_by_name()[name].out} raises {str(error).splitlines()[0]}")
            return
        self.ran.add(name)
        for place, (address, shape, strides) in zip(places, before, strict=True):
            relaid = _steps(place) != _steps(place, strides)
            if place.data_ptr() != address or place.shape != shape or relaid:
                now = f"{list(place.shape)} by {place.stride()}"
                self.wrong.setdefault(name, f"{facts_by_name()[name].out} makes {now} of {list(shape)} by {strides}")
        if not _draws(out) and not name.startswith(("empty", "new_empty")):
            for place, result in zip(places, pytree.tree_leaves(results), strict=True):
                if place.shape == result.shape and not _close(place, result):
                    laid = ", ".join(
                        str(each.stride()) for each in pytree.tree_leaves(given) if hasattr(each, "stride")
                    )
                    self.wrong.setdefault(
                        name, f"{facts_by_name()[name].out} computes something else of strides {laid}"
                    )


class Mixed(TorchDispatchMode):
    """Traces each operator that runs, as it is called and with operands of two float types.

    wrong   by operator what was found, with an example
    """

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        self._calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator, and compares."""
        given = args, kwargs or {}
        results = self._compared(function, *given)
        key = str(function), tuple(each.dtype for each in pytree.tree_leaves(given) if isinstance(each, torch.Tensor))
        if not function._schema.is_mutable and self._calls[key] < MIXED:
            self._calls[key] += 1
            for other in _in_two_types(given):
                with contextlib.suppress(RuntimeError, TypeError, ValueError):  # which eager PyTorch raises too
                    self._compared(function, *other)
        return results

    def _compared(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        traced = None if function._schema.is_mutable or _is_known(function) else _traced(function, args, kwargs)
        results = function(*args, **kwargs)
        for i, (one, told) in enumerate(zip(pytree.tree_leaves(results), traced or (), strict=False)):
            if isinstance(one, torch.Tensor) and one.dtype != told.dtype:
                types = [str(each.dtype)[6:] for each in pytree.tree_leaves((args, kwargs)) if hasattr(each, "dtype")]
                words = f"result {i} is {one.dtype}, traced {told.dtype}, of {', '.join(types)}"
                self.wrong.setdefault(str(function).removeprefix(PREFIX), words)
        return results


def _is_known(function: Any) -> bool:
    return str(function) in kernel_probes.PROBED_OPERATORS or str(function) in operators.PROBED_OPERATORS


def _in_two_types(given: Any) -> Iterator[Any]:
    """What an operator is given, with one tensor, all but the first, or all but the first two in another float type."""
    leaves, tree = pytree.tree_flatten(given)
    given = [each.detach() if isinstance(each, torch.Tensor) else each for each in leaves]
    at = [i for i, each in enumerate(given) if isinstance(each, torch.Tensor) and each.is_floating_point()]
    for chosen in ([i] for i in at) if len(at) > 1 else ():
        for some in (chosen, [i for i in at if i not in chosen]):
            first = given[some[0]].dtype
            for dtype in (torch.float32,) if first in HALVES else HALVES[:1]:
                yield pytree.tree_unflatten([x.to(dtype) if i in some else x for i, x in enumerate(given)], tree)


def _draws(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


def _close(x: torch.Tensor, y: torch.Tensor) -> bool:
    bound = CLOSE.get(x.dtype, 0.0)
    return torch.allclose(x.detach().double(), y.detach().double(), bound, bound, equal_nan=True)


def _one_laid_otherwise(given: Any) -> Iterator[Any]:
    """What an operator is given with one of its tensors in another layout, each in each."""
    leaves, tree = pytree.tree_flatten(given)
    for i, each in enumerate(leaves):
        for layout in LAYOUTS if isinstance(each, torch.Tensor) else ():
            other = laid(each, layout)
            if other is not each:
                yield pytree.tree_unflatten([*leaves[:i], other, *leaves[i + 1 :]], tree)


def _steps(x: Any, strides: Sequence[int] | None = None) -> list[int]:
    """The strides that say something, of a tensor or instead of its own."""
    return [step for n, step in zip(x.shape, strides or x.stride(), strict=True) if n > 1]


def _traced(function: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """The tensors that tracing says an operator gives; None where it does not trace it, or one is not strided."""
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if any(each.layout != torch.strided or each.is_complex() for each in tensors):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(x: Any) -> Any:
        return mode.from_tensor(x.detach()) if isinstance(x, torch.Tensor) else x

    try:
        with mode:
            found = pytree.tree_leaves(function(*pytree.tree_map(fake, args), **pytree.tree_map(fake, kwargs)))
    except Exception:  # whatever tracing meets: such a graph is not planned
        return None
    plain = all(isinstance(each, torch.Tensor) and each.layout == torch.strided for each in found)
    return found if plain and not any(each.is_complex() for each in found) else None


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    """Some of the operator's samples, with all three layouts."""
    torch.manual_seed(SEED)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point and op.supports_autograd))
    count = min(most, len(found))
    for number in range(count):
        each = found[number * len(found) // count]
        for layout in LAYOUTS:
            yield laid((each.input, each.args, each.kwargs), layout)


def run(op: Any, given: Any) -> None:
    """The operator with its gradients."""
    first, args, kwargs = given
    results, inputs = (
        [each for each in pytree.tree_leaves(some) if isinstance(each, torch.Tensor) and each.requires_grad]
        for some in (op(first, *args, **kwargs), given)
    )
    real = [(each * each).sum() for each in results if each.is_floating_point()]
    if real and inputs:
        torch.autograd.grad(real, inputs, allow_unused=True)


def main() -> None:
    """Run, and tell each operator whose kernel gives something else than it was traced to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--mixed", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()  # PyTorch logs, with a traceback, each operator that it does not trace
    beside: Beside | Mixed = Mixed() if asked.mixed else Beside()
    count, dtypes = 0, (*DTYPES, torch.float16) if asked.mixed else DTYPES
    for op in op_db:
        if not op.name.startswith(tuple(asked.ops.split(","))):
            continue
        for dtype in dtypes:
            for given in samples(op, dtype, asked.samples) if dtype in op.dtypes else ():
                count += 1
                try:
                    with beside:
                        run(op, given)
                except Exception:  # what an operator does not take: eagerly it raises too
                    continue
    for name, words in sorted(beside.wrong.items()):
        print(f"{name}: {words}")
    if isinstance(beside, Mixed):
        print(f"{count} samples; {len(beside.wrong)} operators give other types than traced")
        raise SystemExit(bool(beside.wrong) or not count)
    used = sum(bool(each.out) for each in facts_by_name().values())
    print(f"{count} samples; {len(beside.ran)} of {used} operators with `out=`; {len(beside.wrong)} wrong")
    raise SystemExit(bool(beside.wrong) or not beside.ran)


if __name__ == "__main__":
    main()
