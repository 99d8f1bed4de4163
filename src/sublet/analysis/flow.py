"""The control flow graph of a program under a schedule (as in PaddlePaddle's memory optimisation design).

The program is laid out as a list of points, sub-graphs included, so that loops and branches are
only edges and every later analysis is one plain algorithm over points. Point 0 starts the run (it
defines the inputs and weights), the last point ends it (it uses the outputs, and what was updated).

    branch     start of a CaseOf; uses the index
    yield      end of an arm, or of the way without an arm; moves its results to the outputs
    enter      start of a While; moves the initial values to the parameters
    round      top of every round; defines the counter
    check      reads the condition
    fetch      takes one slice of every sequence
    next       stores the rows; moves the updates to the parameters, all at once
    exit       moves the parameters to the outputs
    update     after all nodes: moves the sources of the graph's updates to their targets, all at once

A value that is only ever assigned by such moves may be a *pointer* instead [NNC: multi-view tensor]: it has no
bytes of its own, and nothing moves; it stands for whatever was assigned to it. A loop with pointers is
unrolled for planning, see `analysis.unroll`: each copy of its body knows what they stand for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sublet.analysis.instances import Instance, Targets
from sublet.analysis.scopes import Facts, Scopes
from sublet.analysis.unroll import Way
from sublet.analysis.windows import Window
from sublet.ir.graph import Node, Value
from sublet.plan import Context, Edge, Rolled
from sublet.plan import Point as PlanPoint

Moves = tuple[tuple[Value, Value], ...]
Choices = tuple[tuple[Value, Targets], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of the run: first all `uses` are read, then all `defs` are written.

    `moves` are the (source, destination) pairs of a parallel assignment among them. `path` names
    the step of every graph level the point lies in, as (level, step) pairs from the root down.
    `copies` tells in which copy of the body of each unrolled loop around it the point lies. After the point
    nobody asks for what `forgotten` values were before: they are pointers to what was not chosen. `choices` are the
    operands of the node that may be one of several instances, with these. `facts` are those of the op of a node without
    sub-graphs as the program has it: `node` may read a literal where a pointer stands for one in some copies only.
    """

    kind: str
    node: Node | None
    uses: tuple[Value, ...]
    defs: tuple[Value, ...]
    moves: Moves
    path: tuple[tuple[int, int], ...]
    copies: Context = ()
    forgotten: tuple[Value, ...] = ()
    choices: Choices = ()
    facts: Facts | None = None

    @property
    def planned(self) -> PlanPoint:
        """The point, as plans have it."""
        return PlanPoint(self.kind, self.node.name if self.node else "", self.copies)

    def __str__(self) -> str:
        return str(self.planned)


@dataclass(frozen=True)
class Unrolling:
    """What the values of the points are, where loops are unrolled and pointers stand for other values.

    instances  what the points use and define, in order of definition in the program: a value itself, or what
               it is in certain copies of unrolled loops
    aliases    (instance, source): a pointer's instance is the bytes of its source
    ways       for each alias the loop or branch that it comes out of, and by which of its ends; for one of a
               parameter the loop, and in which copy of its body
    rolled     the unrolled loops
    heads      of each of these what its pointers stand for when each copy begins; None for one of several instances
    pointers   the values of the program that are pointers
    alike      (first, later): what a parameter stands for in a copy that runs once, and in the copy of the
               ring that would run in its place: if both are the same bytes, the copies are alike
    windows    slices and rows that are bytes of wholes which lie in one place each
    pointed    the instances that are assigned to pointers, and the edges on which they are
    scopes     what is known of the program, for the next flow of it
    """

    instances: Mapping[Value, Instance]
    aliases: tuple[tuple[Value, Value], ...]
    ways: Mapping[Value, Way]
    rolled: tuple[Rolled, ...]
    heads: tuple[tuple[tuple[Value | None, ...], ...], ...]
    pointers: frozenset[Value]
    alike: tuple[tuple[Value, Value], ...]
    windows: tuple[Window, ...]
    pointed: Mapping[Value, Collection[Edge]]
    scopes: Scopes


@dataclass(frozen=True)
class Flow:
    """Points in the order of the schedule, the points that may follow each, and the order between streams.

    `levels[k][i]` is the bit set of steps that happen before step i of graph level k; each copy of a body is a level
    of its own, so that nothing in it runs beside anything of another.
    """

    points: tuple[Point, ...]
    followers: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[int, ...], ...]
    unrolling: Unrolling

    @property
    def serial(self) -> bool:
        """Whether every level is totally ordered, so that any two points are."""
        return all(mask == (1 << i) - 1 for level in self.levels for i, mask in enumerate(level))
