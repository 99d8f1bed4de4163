"""ONNX's own backend tests on Sublet, each run a second time in a poisoned arena.

`python -m tests.conformance [PART_OF_A_NAME ...]` prints how many cases pass, which values cannot be planned and
why, and what fails. It exits with 1 when a case fails that is not in `EXPECTED`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test import BackendTest

from sublet.base.errors import SubletError
from sublet.base.tensor import Unplannable
from sublet.integrations.onnx.onnx_backend import SubletBackend, SubletRep
from sublet.ir.graph import CaseOf, Graph, While
from sublet.ops.op import lookup
from sublet.runtime.poison import run_poisoned

RANDOM = "draws random numbers"
TRAINING = "no backend computes gradients"
EXPECTED = {
    "test_bernoulli": RANDOM,
    "test_bernoulli_double": RANDOM,
    "test_bernoulli_double_expanded": RANDOM,
    "test_bernoulli_expanded": RANDOM,
    "test_bernoulli_seed": RANDOM,
    "test_bernoulli_seed_expanded": RANDOM,
    "test_gradient_of_add": TRAINING,
    "test_gradient_of_add_and_mul": TRAINING,
    "test_loop16_seq_none": "ONNX's runner asks a scalar in a sequence for its length; the results are right",
    "test_scan_sum": "Scan of operator set 8 stays one node, which the reference implementation cannot run",
}
"""Cases that fail, and why."""


@dataclass
class Report:
    """What became of one case: what is wrong with it, and with its run in the poisoned arena; "" for nothing."""

    category: str
    name: str
    failure: str = ""
    poisoned: str = "it did not run"
    graphs: list[Graph] = field(default_factory=list)

    @property
    def outside(self) -> dict[str, Unplannable]:
        """The values that cannot be planned, by name."""
        found: dict[str, Unplannable] = {}
        for graph in self.graphs:
            found.update((v.name, v.spec) for v in graph.values() if isinstance(v.spec, Unplannable))
        return found

    @property
    def control(self) -> tuple[str, ...]:
        """The loops and branches that run."""
        kinds = [type(n).__name__ for graph in self.graphs for n in graph.walk() if isinstance(n, While | CaseOf)]
        return tuple(dict.fromkeys(kinds))


class Twice(SubletRep):
    """Runs again in a poisoned arena, and compares."""

    def __init__(self, *args: Any, report: Report) -> None:
        super().__init__(*args)
        self._report = report

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        outputs = super().run(inputs, **kwargs)
        feeds = self.feeds(inputs)
        executable = self.executable(feeds)
        self._report.graphs.append(executable.graph)
        try:
            again = run_poisoned(executable, feeds)
            pure = all(lookup(node.op).pure for node in executable.graph.walk() if not isinstance(node, While | CaseOf))
            differs = [n for n, x in zip(self.outputs, outputs, strict=True) if not same(x, again[n], content=pure)]
            self._report.poisoned = f"other results: {', '.join(differs)}" if differs else ""
        except SubletError as error:
            self._report.poisoned = first_line(error)
        executable.close()
        return outputs


def same(a: Any, b: Any, *, content: bool) -> bool:
    """Whether two results are equal, to the bit; without `content` only their types and shapes."""
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y, content=content) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not content:
        return True
    return bool((a == b).all()) if a.dtype.kind in "OUS" else a.tobytes() == b.tobytes()


class ReferenceTwice(SubletBackend):
    """The interface that BackendTest calls; `report` is about the case that runs."""

    kernels = "reference"
    report: Report

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SubletRep:
        return Twice(model, cls.kernels, None, report=cls.report)


@cache
def cases() -> dict[str, type]:
    """The classes of ONNX's test cases, by category."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, type] = BackendTest(ReferenceTwice, __name__).test_cases
    return found


def names() -> list[tuple[str, str]]:
    """Category and name of every case."""
    return [
        (category, name.removesuffix("_cpu"))
        for category, kind in cases().items()
        for name in sorted(vars(kind))
        if name.startswith("test_") and name.endswith("_cpu")
    ]


def run_case(category: str, name: str) -> Report:
    """Run one case; nothing it raises gets out but an interrupt."""
    report = ReferenceTwice.report = Report(category.removeprefix("OnnxBackend").removesuffix("ModelTest"), name)
    method = f"{name}_cpu"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            getattr(cases()[category](method), method)()
    except Exception as error:  # whatever a case raises is what is wrong with it
        report.failure = first_line(error)
    return report


def first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:150]}"


def reports(parts: Sequence[str]) -> Iterator[Report]:
    """Run every case, or those whose names have one of `parts` in them."""
    for category, name in names():
        if not parts or any(part in name for part in parts):
            yield run_case(category, name)


def _table(found: Sequence[Report]) -> None:
    width = max(len(report.category) for report in found)
    print(f"{'':{width}}  cases  passed  passed poisoned  with values outside")
    for category in [*dict.fromkeys(report.category for report in found), ""]:
        rows = [report for report in found if category in ("", report.category)]
        passed = [report for report in rows if not report.failure]
        clean = [report for report in passed if not report.poisoned]
        outside = [report for report in rows if report.outside]
        label = category or "all"
        print(f"{label:{width}}  {len(rows):5}  {len(passed):6}  {len(clean):15}  {len(outside):19}")


def _reasons(found: Sequence[Report]) -> None:
    counts: Counter[str] = Counter()
    for report in found:
        reasons = (re.sub(r" \(node .*\)| at node .*| '.*?'", "", spec.reason) for spec in report.outside.values())
        counts.update(dict.fromkeys(reasons, 1))
    print("\nwhy values lie outside the plan, and in how many cases:")
    for reason, count in counts.most_common():
        print(f"  {count:5}  {reason}")


def _control(found: Sequence[Report]) -> None:
    print("\nloops and branches:")
    for report in (r for r in found if r.control):
        total = sum(1 for graph in report.graphs for _ in graph.values())
        verdict = report.failure or report.poisoned or "ok"
        planned = total - len(report.outside)
        print(f"  {report.name}: {', '.join(report.control)}; {planned} of {total} values planned; {verdict}")


def main(parts: Sequence[str]) -> int:
    """Run, print, and say whether anything unexpected failed."""
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(ONNX_HOME=home, ONNX_MODELS=f"{home}/models")
        found = list(reports(parts))
    if not found:
        print("no case has such a name")
        return 1
    _table(found)
    _reasons(found)
    _control(found)
    failed = [report for report in found if report.failure or report.poisoned]
    print(f"\n{len(failed)} failures:")
    for report in failed:
        why = EXPECTED.get(report.name, "")
        print(f"  {report.name}: {report.failure or 'poisoned: ' + report.poisoned}{f'  ({why})' if why else ''}")
    return int(any(report.name not in EXPECTED for report in failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
