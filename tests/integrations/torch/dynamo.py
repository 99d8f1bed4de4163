"""What people do with `torch.compile`, each with backend "sublet" and eagerly: values, gradients and changes are equal.

    python -m tests.integrations.torch.dynamo [--device] [NAME...]

The cases follow PyTorch's own tests of Dynamo and its backends, which its wheel does not bring.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

import sublet
from tests.integrations.torch import (
    dynamo_bad,
    dynamo_calls,
    dynamo_gradients,
    dynamo_memory,
    dynamo_modules,
    dynamo_programs,
)
from tests.integrations.torch.on_device import recorded

Compile = Callable[..., Any]
Case = Callable[[Compile], Any]

CASES: Mapping[str, Case] = {
    name.replace("_", " "): case
    for room in (dynamo_calls, dynamo_gradients, dynamo_memory, dynamo_modules, dynamo_programs, dynamo_bad)
    for name, case in vars(room).items()
    if getattr(case, "is_case", False)
}


def compiled(function: Any, **options: Any) -> Any:
    """As users write it."""
    return torch.compile(function, backend="sublet", **options)


def as_on_a_device(function: Any, **options: Any) -> Any:
    """As on a device, with calls recorded."""
    return torch.compile(function, **{**options, "options": None, "backend": recorded})


def eager(function: Any, **options: Any) -> Any:
    """The function itself."""
    return function


def run(case: Case, wrap: Compile) -> tuple[list[Any], list[str]]:
    """What a case gives, and what was left to PyTorch on the way."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    before = len(sublet.torch.report())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytree.tree_leaves(case(wrap))
    state = torch.get_rng_state()
    return [*found, state], [each.reason for each in sublet.torch.report()[before:] if each.plan is None]


def differences(case: Case, wrap: Compile = compiled) -> tuple[list[str], list[str]]:
    """What differs from eager, and what was left to PyTorch."""
    (founds, left), (rights, _) = run(case, wrap), run(case, eager)
    if len(founds) != len(rights):
        return [f"{len(founds)} values, eagerly {len(rights)}"], left
    wrong = []
    for number, (found, right) in enumerate(zip(founds, rights, strict=True)):
        try:
            torch.testing.assert_close(
                found, right, rtol=2e-5, atol=2e-5, equal_nan=True, check_stride=bool(right.numel())
            ) if isinstance(right, torch.Tensor) else _same(found, right)
        except AssertionError as error:
            wrong.append(f"value {number}: " + " ".join(str(error).split())[:200])
    return wrong, left


def _same(found: Any, right: Any) -> None:
    assert type(found) is type(right), f"{found!r}, eagerly {right!r}"
    assert found == right, f"{found!r}, eagerly {right!r}"


def main() -> None:
    """Run cases, and tell those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", dest="wrap", action="store_const", const=as_on_a_device, default=compiled)
    asked = parser.parse_args()
    wrong = 0
    for name, case in CASES.items():
        if asked.names and not any(each in name for each in asked.names):
            continue
        begin = time.process_time()
        try:
            found, left = differences(case, asked.wrap)
        except Exception as error:
            found, left = [f"{type(error).__name__}: {str(error).strip().splitlines()[:2]}"], []
        wrong += bool(found)
        words = "; ".join(found) if found else "equal"
        told = f" (left to PyTorch: {'; '.join(each[:70] for each in left)})" if left else ""
        print(f"{name}: {words}{told} [{time.process_time() - begin:.1f} s]", flush=True)
    print(f"{len(CASES) if not asked.names else ''} cases, {wrong} differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
