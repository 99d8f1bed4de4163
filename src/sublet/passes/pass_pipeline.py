"""All passes by name, and the order in which `simplify` runs the passes.

A pass is a function Graph -> Graph preserving the results of the program. Every pass processes sub-graphs, is
deterministic and idempotent. `simplify` runs the cheap passes to a fixpoint, then fusion and ordering, and repeats both
phases to a fixpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.base.errors import Finding, GraphError, SubletError
from sublet.ir.graph import Graph
from sublet.ops.verify import findings, verify
from sublet.passes.algebraic_simplification import without_identities
from sublet.passes.attention_layout import with_attention_in_place
from sublet.passes.constant_folding import with_folded_constants
from sublet.passes.fusion import with_chains, with_fused_patterns
from sublet.passes.redundant_nodes import without_common_subexpressions, without_dead_code
from sublet.passes.reordering import with_lower_peak
from sublet.passes.reslice_concat import with_resliced_operands
from sublet.passes.rewriting import run_to_fixpoint
from sublet.passes.sinking import with_late_constants

MAX_REPEATS = 20
"""Maximum number of repetitions; a new order can expose an expression to the simplifying passes."""


@dataclass(frozen=True)
class Pass:
    """A graph rewrite.

    name      name chosen by the user
    run       the pass; the returned graph computes the same results
    ensures   postcondition, in words
    requires  precondition besides a legal graph, in words
    """

    name: str
    run: Callable[[Graph], Graph]
    ensures: str
    requires: str = "a legal graph"


SIMPLIFYING = (
    Pass("dead-code", without_dead_code, "every pure node has an output that is read"),
    Pass("fold", with_folded_constants, "small values known before the run are literals"),
    Pass("needless", without_identities, "no copy, conversion or arithmetic is an identity"),
    Pass("common", without_common_subexpressions, "no two pure nodes of equal op, inputs and attributes"),
)
"""Each pass can enable the remaining passes."""

FUSING = (
    Pass(
        "fuse",
        with_fused_patterns,
        "groups of commands with a fused command are fused",
        "values of a group have one reader",
    ),
    Pass(
        "attention-layout",
        with_attention_in_place,
        "no attention has every tensor transposed, unless strides cost time",
    ),
    Pass("chain", with_chains, "long element-wise sequences on large tensors run block by block"),
)
"""Fusion hides inner values: differentiate before, or give the fused command a gradient by parts."""

ORDERING = (
    Pass("late-constants", with_late_constants, "a constant is computed right before its first use"),
    Pass("order", with_lower_peak, "the estimated peak of live bytes is not higher than before"),
)

RESLICE = Pass(
    "recall", with_resliced_operands, "no value stays live across the peak beside a concatenation that holds a copy"
)
"""Trades copies for memory: for training, after the simplifying passes and before an order is chosen."""

PASSES = {each.name: each for each in (*SIMPLIFYING, *FUSING, RESLICE, *ORDERING)}
"""All passes by name."""


def run_passes(graph: Graph, passes: Sequence[str | Pass]) -> Graph:
    """Return the graph after running each of the passes, given as `Pass` or by name, in turn.

    Raises SubletError for an unknown name, and GraphError, naming the pass, if a pass returns an illegal graph.
    """
    for entry in passes:
        each = entry if isinstance(entry, Pass) else _find_pass(entry)
        before, graph = graph, each.run(graph)
        if graph != before:
            _verify_after(graph, each)
    return graph


def _verify_after(graph: Graph, after: Pass) -> None:
    """Raise GraphError, naming the pass `after`, if the graph is illegal."""
    found = [Finding(f.rule, f"after the pass {after.name}, {f.where}", f.what, f.fix) for f in findings(graph)]
    if found:
        raise GraphError(found)


def simplify(graph: Graph, *, order: bool = True, keep_equal: bool = False) -> Graph:
    """Return the simplified and fused graph, reordered for lower memory unless `order` is False.

    `keep_equal` keeps nodes of equal op, inputs and attributes apart, as in a graph with values computed again.

    Raises GraphError if the graph is illegal.
    """
    verify(graph)
    simplifying = [each for each in SIMPLIFYING if not (keep_equal and each.run is without_common_subexpressions)]
    return run_to_fixpoint(graph, lambda before: _simplify_once(before, simplifying, order), MAX_REPEATS)


def _simplify_once(graph: Graph, simplifying: Sequence[Pass], order: bool) -> Graph:
    """Return the graph after one iteration of simplifying, fusing and, if `order`, reordering."""
    graph = _simplify_to_fixpoint(graph, simplifying)
    graph = _simplify_to_fixpoint(run_passes(graph, FUSING[:2]), simplifying)
    return run_passes(graph, [*FUSING[2:], *(ORDERING if order else ())])


def _simplify_to_fixpoint(graph: Graph, simplifying: Sequence[Pass]) -> Graph:
    """Return the graph after running the simplifying passes to a fixpoint."""
    return run_to_fixpoint(graph, lambda before: run_passes(before, simplifying), MAX_REPEATS)


def _find_pass(name: str) -> Pass:
    """Return the pass with this name. Raises SubletError for an unknown name."""
    if name not in PASSES:
        raise SubletError(f"there is no pass {name!r}; there are {', '.join(PASSES)}")
    return PASSES[name]
