"""The memory optimization transpiler: a program becomes one that computes the same and holds less, with a report.

Whatever a policy does, the result is replayed beside the original by a checker that knows nothing of policies
(`checking/`). A rewritten program of Sublet's own policy that the checker refuses is an error; a baseline's is given
with what was found in its report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce

from sublet.base.errors import Finding, ModelError, PlanError, PlanViolation
from sublet.frontends.paddle.arena import arena, lasting
from sublet.frontends.paddle.checking import Judgement, judge
from sublet.frontends.paddle.format.completing import completed
from sublet.frontends.paddle.format.program import TENSOR, Program
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.effects import there
from sublet.frontends.paddle.operators.facts import of
from sublet.frontends.paddle.operators.shapes import Sizes, bound
from sublet.frontends.paddle.peaks.memory import Memory, SizesInArena, SizesOfRenamed, memory, memory_of
from sublet.frontends.paddle.policies.levels import transpiled
from sublet.frontends.paddle.policies.ours import PASSES
from sublet.frontends.paddle.policies.seed import seed

OWN = "sublet"
BASELINES = ("seed", "level0", "level1")
POLICIES = (*BASELINES, OWN)
BY_NAME = ("in place", "temporaries outside", "updates awaited")
"""The passes that the arena form does without: there places are shared, and operators run in their order anyway."""

MOVERS = ("feed", "fetch", "fetch_v2")
"""Operators that move what is fed and fetched."""

LOSS = 0x100
"""The bit of `op_role` that says that an operator computes the loss."""


@dataclass(frozen=True)
class Asked:
    """What to do, by which policy.

    `dims` and `shapes` tell extents that the program leaves open (see `shapes.bound`), `trips` how often loops run at
    most, by the name of their condition; `keep` what will be fetched, beside what the program itself says is.
    `skip_grads` is of the published levels: gradients of parameters stay as they are. `arena` asks for the arena form:
    views of one tensor in place of names that are shared; one that is `lasting` stays from run to run.
    """

    policy: str = OWN
    dims: Mapping[str, int] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    keep: Collection[str] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    skip_grads: bool = True
    arena: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class InArena:
    """The arena form: how large the arena is, the least it can be, how many variables lie in it, and why others do not.

    `judgement` is of the arena form; what the report says besides is of the program that got it.
    """

    bytes: int
    bound: int
    placed: int
    outside: Mapping[Place, str]
    judgement: Judgement | None

    @property
    def proven(self) -> bool:
        return self.judgement is not None and self.judgement.equal


@dataclass(frozen=True)
class Report:
    """What was done, and what is known of it.

    before, after  bytes of the original and of the rewritten program; None where sizes or trips are not known
    unknown_bytes  why they are not known, in words
    kept           names that are there after a run
    left_alone     types of operators of which nothing is known but their slots, and how many there are of each
    judgement      what the checker found; None where it could not run both programs
    unjudged       why not
    completed      variables whose data type was missing, so that Paddle would not parse the program
    """

    policy: str
    before: Memory | None
    after: Memory | None
    unknown_bytes: str
    kept: tuple[str, ...]
    left_alone: Mapping[str, int]
    judgement: Judgement | None
    unjudged: str
    arena: InArena | None = None
    completed: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether the checker has found that both programs compute the same."""
        return self.judgement is not None and self.judgement.equal

    @property
    def findings(self) -> tuple[Finding, ...]:
        return () if self.judgement is None else self.judgement.findings


@dataclass(frozen=True)
class Transpiled:
    """A rewritten program, and what is known of it."""

    program: Program
    report: Report


def transpile(program: Program, asked: Asked | None = None, before: Memory | None = None) -> Transpiled:
    """Rewrite a program by a policy. `before` is what the program holds, where that is known already.

    Raises ModelError for names and extents that make no sense, PlanError for a policy that is not there, and
    PlanViolation if the checker refuses what Sublet's own policy made.
    """
    asked = asked or Asked()
    if asked.policy not in POLICIES:
        raise PlanError(f"there is no policy {asked.policy!r:.80}: choose one of {', '.join(POLICIES)}")
    if asked.arena and asked.policy != OWN:
        raise PlanError(f"the arena form is of the policy {OWN!r}: the pool of {asked.policy!r} shares names instead")
    if asked.lasting and not asked.arena:
        raise PlanError("only an arena can be lasting: add --arena (in Python arena=True)")
    program, names = completed(program)
    asked = replace(asked, keep=kept(program, asked.keep))
    sizes = bound(program, asked.shapes, asked.dims)
    rewritten, names_only = _rewritten(program, sizes, asked)
    judgement, unjudged = _judged(program, rewritten, sizes, asked)
    if asked.policy == OWN and judgement is not None and not judgement.equal:
        for block, name in sizes.unknown:
            sizes.shape(block, name)  # raises: it may be that only this is missing
        raise PlanViolation(judgement.findings)
    before, after, unknown = _memories(sizes, rewritten, names_only, asked, before)
    alone = left_alone(program)
    report = Report(
        asked.policy, before, after, unknown, tuple(asked.keep), alone, judgement, unjudged, completed=names
    )
    made = Transpiled(rewritten, report)
    return _in_arena(program, sizes, made, asked) if asked.arena else made


def kept(program: Program, names: Collection[str] = ()) -> tuple[str, ...]:
    """What is there after a run: the names told, what is fetched, losses, and results that nobody reads.

    Raises ModelError for a name that block 0 does not have.
    """
    top = program.blocks[0]
    for name in names:
        if name not in top.vars:
            near = get_close_matches(name, top.vars, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(f"there is no variable {name!r:.80} to keep in block 0{advice}")
    found = dict.fromkeys(names)
    read = {name for block in program.blocks for op in block.ops for name in op.reads}
    for op in top.ops:
        role = op.attrs.get("op_role")
        is_loss = role is not None and isinstance(role.value, int) and role.value == LOSS
        if op.type in ("fetch", "fetch_v2"):
            found.update(dict.fromkeys(there(op.reads)))
        for name in there(op.writes) if op.block() is None else ():
            var = top.vars.get(name)
            if var is not None and not var.persistable and var.kind == TENSOR and (is_loss or name not in read):
                found[name] = None
    return tuple(found)


def left_alone(program: Program) -> dict[str, int]:
    """Types of operators that no experiment has been made with: nothing is written over what they read."""
    found: dict[str, int] = {}
    for block in program.blocks:
        for op in block.ops:
            if op.block() is None and op.type not in MOVERS and not of(op.type).known:
                found[op.type] = found.get(op.type, 0) + 1
    return dict(sorted(found.items()))


def _rewritten(program: Program, sizes: Sizes, asked: Asked) -> tuple[Program, bool]:
    """The program of a policy, and whether it exchanged names and did nothing else."""
    if asked.policy == OWN:
        passes = [change for name, change in PASSES.items() if not (asked.arena and name in BY_NAME)]
        return reduce(lambda before, change: change(before, asked.keep), passes, program), False
    if asked.policy == "seed":
        return seed(program, sizes, [Place(0, name) for name in asked.keep]).finished(), True
    level = int(asked.policy.removeprefix("level"))
    return transpiled(program, level, asked.keep, skip_grads=asked.skip_grads).finished(), True


def _judged(program: Program, rewritten: Program, sizes: Sizes, asked: Asked) -> tuple[Judgement | None, str]:
    try:
        return judge(program, rewritten, sizes, keep=asked.keep), ""
    except ModelError as error:
        return None, str(error)


def _memories(
    sizes: Sizes, rewritten: Program, names_only: bool, asked: Asked, before: Memory | None
) -> tuple[Memory | None, Memory | None, str]:
    """What both programs hold, and why that is not known."""
    keep = frozenset(Place(0, name) for name in asked.keep)
    try:
        before = before or memory(sizes, keep, asked.trips)
        if names_only:  # the order is the same, and so is what it needs
            after = memory_of(rewritten, SizesOfRenamed(sizes, rewritten), keep, asked.trips)
            return before, replace(after, bound=before.bound), ""
        return before, memory(bound(rewritten, asked.shapes, asked.dims), keep, asked.trips), ""
    except (ModelError, PlanError) as error:
        return None, None, str(error)


def _in_arena(program: Program, sizes: Sizes, made: Transpiled, asked: Asked) -> Transpiled:
    """The arena form of a rewritten program. Raises ModelError for extents that nobody told."""
    form = arena(made.program, bound(made.program, asked.shapes, asked.dims), asked.keep)
    given = lasting(form.program) if asked.lasting else form.program
    judgement, _ = _judged(program, given, sizes, asked)
    told = InArena(form.bytes, form.bound, len(form.places), form.outside, judgement)
    after = made.report.after
    if after is not None:  # a lasting arena is counted like one that each run makes first
        placed = SizesInArena(bound(form.program, asked.shapes, asked.dims), frozenset(form.places))
        keep = frozenset(Place(0, name) for name in asked.keep)
        after = replace(memory_of(form.program, placed, keep, asked.trips), bound=after.bound)
    return Transpiled(given, replace(made.report, after=after, arena=told))
