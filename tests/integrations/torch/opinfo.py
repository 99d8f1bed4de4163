"""The samples that PyTorch tests its operators with, each planned and held against PyTorch: `make opinfo-torch`.

    python -m tests.integrations.torch.opinfo [--ops add,linalg] [--dtypes float32,int64] [--samples 8]

See `judged` for what is asked of each. `--ops` are beginnings of names; of an operator that has more than `--samples` a
type, as many are taken, evenly. Each is judged with its tensors as they are given, and in another layout of `laid`.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.integrations.torch.judged import CLOSE, DIFFERENT, EAGER, EQUAL, TWO_WAYS, judge
from tests.integrations.torch.laid import GIVEN, LAYOUTS, SEED, laid

DTYPES = ("float32", "float64", "bfloat16", "int64")


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """The operator as functions of tensors alone, with these, as given and in another layout where that is another."""
    others = [layout for layout in LAYOUTS if layout != GIVEN]
    torch.manual_seed(SEED)
    found = list(op.sample_inputs("cpu", dtype))
    count = min(most, len(found))
    for number in range(count):
        sample = found[number * len(found) // count]
        leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        at = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        function, given = _function(op, leaves, at, tree), [leaves[i].detach() for i in at]
        for layout in (GIVEN, others[number % len(others)]):
            inputs = laid(given, layout)
            if layout == GIVEN or any(each is not other for each, other in zip(inputs, given, strict=True)):
                yield f"{number}{f', {layout}' * (layout != GIVEN)}", function, inputs


def _function(op: Any, leaves: Sequence[Any], at: Sequence[int], tree: Any) -> Callable[..., Any]:
    def function(*tensors: Any) -> Any:
        given = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            given[i] = tensor
        args, kwargs = pytree.tree_unflatten(given, tree)
        return op(*args, **kwargs)

    return function


def reason(words: str) -> str:
    """What is refused, without what is only this sample's."""
    return re.sub(r"\b\d+\b", "N", re.sub(r"^.*?: ", "", words, count=1))[:100]


def main() -> None:
    """Judge, and tell each difference and why samples were refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 are halves of the operators")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    part, parts = map(int, asked.part.split("/"))
    chosen = [op for op in op_db if op.name.startswith(tuple(asked.ops.split(",")))][part::parts]
    counts: Counter[str] = Counter()
    kinds: dict[str, set[str]] = defaultdict(set)
    why: dict[str, Counter[str]] = defaultdict(Counter)
    over = 0
    for op in chosen:
        for name in asked.dtypes.split(","):
            dtype = getattr(torch, name)
            if dtype not in op.dtypes:
                continue
            begin = time.perf_counter()
            for number, function, inputs in samples(op, dtype, asked.samples):
                label = f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}"
                found = judge(function, inputs, contents=not op.name.startswith(("empty", "new_empty")))
                counts[found.kind] += 1
                kinds[found.kind].add(label)
                over += found.over
                if found.kind == DIFFERENT:
                    print(f"{label} {name} sample {number}: {found.why}", flush=True)
                elif found.kind not in (EQUAL, EAGER):
                    why[found.kind][label if found.kind in (CLOSE, TWO_WAYS) else reason(found.why)] += 1
            if time.perf_counter() - begin > 30:
                print(f"{op.name} {name} takes {time.perf_counter() - begin:.0f} s", flush=True)
    for kind, groups in why.items():
        print(f"\n{kind}:")
        for words, count in groups.most_common():
            print(f"  {count:5} {words}")
    print(f"\n{len(chosen)} operators, {sum(counts.values())} samples, {over} results over an input")
    for kind, count in counts.most_common():
        print(f"  {count:5} {kind} ({len(kinds[kind])} operators)")
    raise SystemExit(bool(counts[DIFFERENT]) or not counts[EQUAL])


if __name__ == "__main__":
    main()
