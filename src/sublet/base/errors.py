"""Every exception Sublet raises on purpose.

    SubletError                  base: catch this to catch them all
    ├── MissingExtraError        an optional dependency is not installed
    ├── ModelError               a model file is malformed, unreadable or unsafe
    ├── GraphError               a graph breaks a rule of `ops.verify`; carries all findings
    ├── SpecError                values of such shapes or types cannot be given to an op
    ├── GradientError            something has no gradient
    ├── TextError                the text form of a graph does not parse; carries the line
    ├── ProblemError             a packing problem is malformed
    ├── CapacityError            buffers do not fit the capacities of the memory regions
    ├── PackingError             a packing breaks its problem; carries all findings
    ├── PlanError                a plan file is malformed, or was made for another graph
    ├── PlanViolation            the checker refused a plan; carries all violations
    └── RunError                 a run went wrong, or what it was given is wrong
        └── KernelError          a kernel raised; names its node

A message says where, what, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SubletError(Exception):
    """Base of all of Sublet's own errors."""


class MissingExtraError(SubletError, ImportError):
    """An optional dependency is missing; the message names the extra that brings it."""


class ModelError(SubletError):
    """A model file is malformed, unreadable, unsafe, or leaves a dimension open."""


class SpecError(SubletError):
    """Values of such shapes, types or attributes cannot be given to an op."""


class GradientError(SubletError):
    """A gradient was asked for where there is none: of an integer, of a random value, through an op without a rule."""


class TextError(SubletError):
    """The text form of a graph does not parse."""


class ProblemError(SubletError):
    """A packing problem is malformed."""


class CapacityError(SubletError):
    """No way was found to fit all buffers into the capacities of the memory regions."""


class PlanError(SubletError):
    """A plan file is malformed, or belongs to another graph."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where it is, what it is, and what to do.

    `rule` is a short stable name (`"undefined-value"`, `"overlap"`), for tests and tools. `names` are the values and
    nodes it is about, as far as a plan may be made again with fewer pointers because of them.
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
"""Findings a message lists; `findings` holds all."""


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

    headline = "rule(s) of a legal graph broken"


class PackingError(FindingsError):
    """A packing does not satisfy its problem."""

    headline = "violation(s) in the packing"


class PlanViolation(FindingsError):
    """The independent checker refused a memory plan."""

    headline = "violation(s) in the memory plan"


class RunError(SubletError):
    """A run went wrong, or an input or memory given to an executable is wrong. The executable stays usable."""


class KernelError(RunError):
    """A kernel raised while it computed a node; the cause is attached."""
