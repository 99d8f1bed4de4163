"""Every exception Sublet raises on purpose.

    SubletError                  base: catch this to catch them all
    ├── MissingExtraError        an optional dependency is not installed
    ├── ModelError               a model file is malformed, unreadable or unsafe
    ├── GraphError               a graph breaks a rule of `ops.verify`; carries all findings
    ├── SpecError                an op does not accept values of the given shapes or types
    ├── GradientError            the requested gradient does not exist
    ├── TextError                the text form of a graph does not parse; carries the line
    ├── ProblemError             a packing problem is malformed
    ├── CapacityError            buffers do not fit the capacities of the memory regions
    ├── PackingError             a packing breaks its problem; carries all findings
    ├── PlanError                a plan file is malformed, or was made for another graph
    ├── PlanViolation            the checker refused a plan; carries all violations
    └── RunError                 a run failed, or an argument of the run is invalid
        └── KernelError          a kernel raised; names its node

A message says where the error is, what was expected and found, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SubletError(Exception):
    """Base of all errors raised by Sublet."""


class MissingExtraError(SubletError, ImportError):
    """An optional dependency is missing; the message names the extra that installs the dependency."""


class ModelError(SubletError):
    """A model file is malformed, unreadable, unsafe, or leaves a dimension open."""


class SpecError(SubletError):
    """An op does not accept values of the given shapes, types or attributes."""


class GradientError(SubletError):
    """The requested gradient does not exist: of an integer, of a random value, or through an op without a rule."""


class TextError(SubletError):
    """The text form of a graph does not parse."""


class ProblemError(SubletError):
    """A packing problem is malformed."""


class CapacityError(SubletError):
    """The planner found no way to fit all buffers into the capacities of the memory regions."""


class PlanError(SubletError):
    """A plan file is malformed, or belongs to another graph."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule violation: the place, a description, and advice.

    `rule` is a short stable name (`"undefined-value"`, `"overlap"`), for tests and tools. `names` are the affected
    values and nodes; the planner may copy the loop-carried values among them, instead of renaming, in the next attempt.
    """

    rule: str
    where: str
    what: str
    fix: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        advice = f" ({self.fix})" if self.fix else ""
        return f"{self.where}: {self.what}{advice} [{self.rule}]"


SHOWN = 20
"""Findings listed in a message; `findings` holds all."""


class FindingsError(SubletError):
    """Base of the errors that report all findings, not only the first."""

    headline = "problem(s) found"

    def __init__(self, findings: Sequence[Finding]):
        self.findings = tuple(findings)
        lines = [f"  {finding}" for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"  and {len(self.findings) - SHOWN} more")
        super().__init__("\n".join([f"{len(self.findings)} {self.headline}:", *lines]))


class GraphError(FindingsError):
    """A graph is not legal; see the numbered rules in `sublet.ops.verify`."""

    headline = "violation(s) in the graph"


class PackingError(FindingsError):
    """A packing does not satisfy its problem."""

    headline = "violation(s) in the packing"


class PlanViolation(FindingsError):
    """The independent checker refused a memory plan."""

    headline = "violation(s) in the memory plan"


class RunError(SubletError):
    """A run failed, or an input or memory passed to an executable is invalid. The executable stays usable."""


class KernelError(RunError):
    """A kernel raised while computing a node; the cause is attached."""
