"""The control flow graph of a program under a schedule (after PaddlePaddle's memory optimisation design).

The program is a list of points, sub-graphs included: loops and branches are only edges, and every later analysis is a
plain algorithm over points. Point 0 starts the run and defines the inputs and weights. The last point ends the run and
uses the outputs and the updated values. Besides "start", "run" (a node without sub-graphs) and "end", the kinds of
points are:

    branch     start of a CaseOf; uses the index
    yield      end of an arm, or of the fallback; moves the results to the outputs
    enter      start of a While; moves the initial values to the parameters
    round      top of every iteration; defines the counter
    check      reads the condition
    fetch      takes a slice of every sequence
    next       stores the rows; moves the updates to the parameters, all at once
    exit       moves the parameters to the outputs
    update     after all nodes: moves the sources of the graph's updates to their targets, all at once

A value assigned only by moves may be *renamed* [NNC: multi-view tensor]. A renamed value owns no bytes and costs no
move: the value is bound to the storage of the value assigned to it. For planning, a loop with renamed values is
unrolled into body versions, see `analysis.loop_versions`; in each version the bindings are known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sublet.analysis.loop_versions import ExitEdges
from sublet.analysis.program_facts import LoopView, ProgramFacts, SharingFacts
from sublet.analysis.value_versions import PossibleVersions, VersionOrigin
from sublet.ir.graph import Node, Value
from sublet.plan import Context, Edge, RolledLoop
from sublet.plan import PlanPoint as PlanPoint

Moves = tuple[tuple[Value, Value], ...]
Choices = tuple[tuple[Value, PossibleVersions], ...]


@dataclass(frozen=True, slots=True)
class FlowPoint:
    """A program point: first all `uses` are read, then all `defs` are written.

    moves     (source, destination) pairs of a parallel assignment, among the uses and defs
    path      the step of every graph level around the point, as (level, step) pairs from the root down
    context   the body version of each unrolled loop around the point
    kills     aliases not chosen on the path through the point, hence dead after the point
    choices   the operands of the node bound to any of several versions, each with the versions
    facts     the sharing facts of the op of a node without sub-graphs, as in the program: `node` itself may read a
              literal where a renamed value is bound to a literal in some body versions only
    """

    kind: str
    node: Node | None
    uses: tuple[Value, ...]
    defs: tuple[Value, ...]
    moves: Moves
    path: tuple[tuple[int, int], ...]
    context: Context = ()
    kills: tuple[Value, ...] = ()
    choices: Choices = ()
    facts: SharingFacts | None = None

    @property
    def plan_point(self) -> PlanPoint:
        """The point as recorded in plans."""
        return PlanPoint(self.kind, self.node.name if self.node else "", self.context)

    def __str__(self) -> str:
        return str(self.plan_point)


@dataclass(frozen=True)
class Unrolling:
    """The versions of all values in a control flow graph: unrolled loops and renamed values.

    versions         the values the points use and define, in order of definition in the program: a program value
                     itself, or its version in certain body versions of unrolled loops
    aliases          (version, source): the version of a renamed value shares the bytes of its source
    exit_edges       for each alias the loop or branch it comes out of, and by which exit edges; for the entry binding
                     of a parameter the loop, and the number of the body version
    rolled_loops     the records of the unrolled loops
    entry_bindings   for each of these loops and each body version the versions bound to the renamed parameters at
                     entry; None for any of several versions
    renamed_values   the renamed values of the program
    prologue_pairs   (prologue, period): the version bound to a parameter in a prologue version, and in the version of
                     the period that would run in its place; if each pair shares its bytes, both body versions are equal
    loop_views       slices and rows that may be views of a whole with a fixed place
    renamed_sources  the versions assigned to renamed values, with the edges of the assignments
    facts            facts of the program, reused for its next control flow graph
    """

    versions: Mapping[Value, VersionOrigin]
    aliases: tuple[tuple[Value, Value], ...]
    exit_edges: Mapping[Value, ExitEdges]
    rolled_loops: tuple[RolledLoop, ...]
    entry_bindings: tuple[tuple[tuple[Value | None, ...], ...], ...]
    renamed_values: frozenset[Value]
    prologue_pairs: tuple[tuple[Value, Value], ...]
    loop_views: tuple[LoopView, ...]
    renamed_sources: Mapping[Value, Collection[Edge]]
    facts: ProgramFacts


@dataclass(frozen=True)
class ControlFlowGraph:
    """Points in the order of the schedule, the successors of every point, and the order between streams.

    `levels[k][i]` is the bit set of steps that happen before step i of graph level k. Each body version is a separate
    level, so nothing in a body version runs concurrently with another body version.
    """

    points: tuple[FlowPoint, ...]
    successors: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[int, ...], ...]
    unrolling: Unrolling

    @property
    def is_serial(self) -> bool:
        """True if every level is totally ordered, hence any two points are ordered."""
        return all(mask == (1 << i) - 1 for level in self.levels for i, mask in enumerate(level))
