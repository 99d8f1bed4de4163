"""The memory optimization transpiler: rewrite a program into an equivalent program with fewer live bytes, and report.

After any policy, the checker (`checking/`) runs the rewritten program beside the original. The checker knows nothing of
policies. If the checker refuses a program by Sublet's own policy, `transpile` raises an error. A program by a baseline
policy is returned with the findings in the report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce

from sublet.base.errors import Finding, ModelError, PlanError, PlanViolation
from sublet.base.tensor import format_dims
from sublet.integrations.paddle.arena import to_arena_form, with_lasting_arena
from sublet.integrations.paddle.checking import EquivalenceVerdict, judge_equivalence
from sublet.integrations.paddle.format.program import GRAD, TENSOR, TENSOR_FIELD, PaddleBlock, PaddleProgram, PaddleVar
from sublet.integrations.paddle.format.wire import WireMessage
from sublet.integrations.paddle.operators.dialect import facts_of, nonempty_names
from sublet.integrations.paddle.operators.shapes import VariableSizes, infer_sizes
from sublet.integrations.paddle.peaks.memory import (
    BytesInArena,
    BytesOfRenamed,
    PredictedMemory,
    predict_memory,
    predict_memory_of,
)
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.policies import PASSES
from sublet.integrations.paddle.policies.levels import share_names_by_level, share_names_by_pool

# Repair of programs with missing data types.
#
# Paddle writes some gradients without an element type: those of unused loop results, such as the last state of an LSTM
# cell. Paddle (2.6.2 and 3.0.0) refuses to parse such a program (`data_type` is a required field), and any rewritten
# version of the program.


def with_missing_types(program: PaddleProgram) -> tuple[PaddleProgram, tuple[str, ...]]:
    """Return the program with all missing data types filled in, and the names of the changed variables.

    A gradient gets the data type of its variable. Raises ModelError if no variable determines the type.
    """
    names: list[str] = []
    blocks = []
    for block in program.blocks:
        typed = {name: _with_dtype(program, block, var) for name, var in block.vars.items() if _lacks_dtype(var)}
        names += typed
        blocks.append(replace(block, vars={**block.vars, **typed}) if typed else block)
    return (replace(program, blocks=tuple(blocks)) if names else program), tuple(names)


def _lacks_dtype(var: PaddleVar) -> bool:
    """Return True if the file describes a tensor without an element type."""
    if var.dtype is not None or var.origin is None or var.kind not in TENSOR_FIELD:
        return False
    type_ = WireMessage.parse(var.origin.raw, var.name).message(2)
    tag, nested = TENSOR_FIELD[var.kind]
    outer = None if type_ is None else type_.message(tag)
    tensor = outer.message(1) if outer is not None and nested else outer
    return tensor is not None and 1 not in tensor.by_tag


def _with_dtype(program: PaddleProgram, block: PaddleBlock, var: PaddleVar) -> PaddleVar:
    """Return the gradient variable with the data type of its forward variable. Raises ModelError if unknown."""
    stem, mark, _ = var.name.partition(GRAD)
    source = program.find_var(block.index, stem) if mark else None
    if source is None or source.dtype is None:
        raise ModelError(
            f"variable {var.name!r:.80} of block {block.index} has no data_type, and Paddle rejects such a program. "
            "Sublet adds the type of gradients only: set the type of other variables (VarDesc.set_dtype)"
        )
    return replace(var, dtype=source.dtype)


OWN_POLICY = "sublet"
BASELINES = ("seed", "level0", "level1")
POLICIES = (*BASELINES, OWN_POLICY)
PASSES_NOT_IN_ARENA = ("in place", "temporaries outside", "updates awaited")
"""Passes without use in the arena form: the arena shares places, and operators run in program order."""

FEED_FETCH_OPERATORS = ("feed", "fetch", "fetch_v2")
"""Operators that move feeds and fetches."""

LOSS_ROLE = 0x100
"""The value of `op_role` for an operator that computes the loss."""


@dataclass(frozen=True)
class TranspileRequest:
    """A request to rewrite a program.

    policy      the name of the policy, from POLICIES
    dims        single extents left open by the program, by "variable.axis" (see `shapes.infer_sizes`)
    shapes      whole shapes of variables with open extents
    trips       the most iterations of each loop, by the name of the loop's condition
    keep        names to be fetched, beside the fetches in the program
    skip_grads  for the published levels: gradients of parameters keep their names
    arena       return the arena form: views of a single tensor instead of shared names
    lasting     keep the arena from run to run
    """

    policy: str = OWN_POLICY
    dims: Mapping[str, int] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    keep: Collection[str] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    skip_grads: bool = True
    arena: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class ArenaReport:
    """Report on the arena form: the size of the arena, a lower bound for the size, and the variables in the arena.

    `placed` is the number of variables in the arena, `outside` has the reason for each variable outside. `judgement` is
    the checker's verdict on the arena form; the rest of the report describes the program before the arena form.
    """

    bytes: int
    bound: int
    placed: int
    outside: Mapping[ScopedVariable, str]
    judgement: EquivalenceVerdict | None

    @property
    def is_proven(self) -> bool:
        """True if the checker has proven the arena form equivalent to the original."""
        return self.judgement is not None and self.judgement.equal


@dataclass(frozen=True)
class TranspileReport:
    """Report on a rewritten program.

    before, after  bytes of the original and of the rewritten program; None if sizes or trip counts are unknown
    unknown_bytes  the reason for unknown bytes
    kept           names available after a run
    left_alone     the number of operators of each type without facts beyond their slots
    judgement      the checker's verdict; None if the checker could not run both programs
    unjudged       the reason for a missing verdict
    completed      variables without a data type in the file, for which Paddle would refuse to parse the program
    extents        the extents for which the verdict holds, as text: those declared by the caller, or all
    """

    policy: str
    before: PredictedMemory | None
    after: PredictedMemory | None
    unknown_bytes: str
    kept: tuple[str, ...]
    left_alone: Mapping[str, int]
    judgement: EquivalenceVerdict | None
    unjudged: str
    completed: tuple[str, ...] = ()
    extents: tuple[str, ...] = ()
    arena: ArenaReport | None = None

    @property
    def is_proven(self) -> bool:
        """True if the checker has proven both programs equivalent."""
        return self.judgement is not None and self.judgement.equal

    @property
    def proven_for(self) -> str:
        """The extents for which the checker's verdict holds, as text."""
        return f" for {', '.join(self.extents)}" if self.extents else ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the checker; empty without a verdict."""
        return () if self.judgement is None else self.judgement.findings


@dataclass(frozen=True)
class Transpiled:
    """A rewritten program with a report."""

    program: PaddleProgram
    report: TranspileReport


def transpile(
    program: PaddleProgram, request: TranspileRequest | None = None, before: PredictedMemory | None = None
) -> Transpiled:
    """Rewrite a program by a policy. `before` is the predicted memory of the original program, if already known.

    Raises ModelError for invalid names and extents, PlanError for an unknown policy or contradictory options, and
    PlanViolation if the checker refuses a program by Sublet's own policy.
    """
    request = request or TranspileRequest()
    if request.policy not in POLICIES:
        raise PlanError(f"there is no policy {request.policy!r:.80}: choose one of {', '.join(POLICIES)}")
    if request.arena and request.policy != OWN_POLICY:
        raise PlanError(f"the arena form requires the policy {OWN_POLICY!r}: {request.policy!r} shares names instead")
    if request.lasting and not request.arena:
        raise PlanError("only an arena can be lasting: add --arena (in Python arena=True)")
    program, names = with_missing_types(program)
    request = replace(request, keep=names_to_keep(program, request.keep))
    sizes = infer_sizes(program, request.shapes, request.dims)
    rewritten, names_only = _rewrite_by_policy(program, sizes, request)
    judgement, unjudged = _check_equivalence(program, rewritten, sizes, request)
    if request.policy == OWN_POLICY and judgement is not None and not judgement.equal:
        for block, name in sizes.open_causes:
            sizes.shape(block, name)  # raises: the unknown extents may be the only cause
        raise PlanViolation(judgement.findings)
    before, after, unknown = _predict_both_memories(sizes, rewritten, names_only, request, before)
    alone = operators_without_facts(program)
    report = TranspileReport(
        request.policy,
        before,
        after,
        unknown,
        tuple(request.keep),
        alone,
        judgement,
        unjudged,
        names,
        _extents(program, request),
    )
    transpiled = Transpiled(rewritten, report)
    return _with_arena_form(program, sizes, transpiled, request) if request.arena else transpiled


def names_to_keep(program: PaddleProgram, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names to keep after a run: `names`, fetched variables, losses, and results without a reader.

    Raises ModelError for a name missing from block 0.
    """
    top = program.blocks[0]
    for name in names:
        if name not in top.vars:
            near = get_close_matches(name, top.vars, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(f"there is no variable {name!r:.80} to keep in block 0{advice}")
    kept_names = dict.fromkeys(names)
    read = {name for block in program.blocks for op in block.ops for name in op.reads}
    for op in top.ops:
        role = op.attrs.get("op_role")
        is_loss = role is not None and isinstance(role.value, int) and role.value == LOSS_ROLE
        if op.type in ("fetch", "fetch_v2"):
            kept_names.update(dict.fromkeys(nonempty_names(op.reads)))
        for name in nonempty_names(op.writes) if op.block_index() is None else ():
            var = top.vars.get(name)
            if var is not None and not var.persistable and var.kind == TENSOR and (is_loss or name not in read):
                kept_names[name] = None
    return tuple(kept_names)


def operators_without_facts(program: PaddleProgram) -> dict[str, int]:
    """Return the number of operators without experimental facts, by type.

    Sublet's own policy writes over no input of such operators.
    """
    counts: dict[str, int] = {}
    for block in program.blocks:
        for op in block.ops:
            if op.block_index() is None and op.type not in FEED_FETCH_OPERATORS and not facts_of(op.type).known:
                counts[op.type] = counts.get(op.type, 0) + 1
    return dict(sorted(counts.items()))


def _extents(program: PaddleProgram, request: TranspileRequest) -> tuple[str, ...]:
    """Return the declared shapes and extents as text; without any, a word on extents that the program leaves open."""
    shapes = (f"{name}={format_dims(shape)}" for name, shape in request.shapes.items())
    declared = (*shapes, *(f"{name}={extent}" for name, extent in request.dims.items()))
    is_open = any(-1 in var.dims for block in program.blocks for var in block.vars.values())
    return declared or (("all values of open extents",) if is_open else ())


def _rewrite_by_policy(
    program: PaddleProgram, sizes: VariableSizes, request: TranspileRequest
) -> tuple[PaddleProgram, bool]:
    """Return the program rewritten by the policy, and True if the policy only exchanged names."""
    if request.policy == OWN_POLICY:
        passes = [change for name, change in PASSES.items() if not (request.arena and name in PASSES_NOT_IN_ARENA)]
        return reduce(lambda before, change: change(before, request.keep), passes, program), False
    if request.policy == "seed":
        return share_names_by_pool(
            program, sizes, [ScopedVariable(0, name) for name in request.keep]
        ).build_program(), True
    level = int(request.policy.removeprefix("level"))
    return share_names_by_level(program, level, request.keep, skip_grads=request.skip_grads).build_program(), True


def _check_equivalence(
    program: PaddleProgram, rewritten: PaddleProgram, sizes: VariableSizes, request: TranspileRequest
) -> tuple[EquivalenceVerdict | None, str]:
    """Return the checker's verdict, or None and the reason if the checker cannot run both programs."""
    try:
        return judge_equivalence(program, rewritten, sizes, keep=request.keep), ""
    except ModelError as error:
        return None, str(error)


def _predict_both_memories(
    sizes: VariableSizes,
    rewritten: PaddleProgram,
    names_only: bool,
    request: TranspileRequest,
    before: PredictedMemory | None,
) -> tuple[PredictedMemory | None, PredictedMemory | None, str]:
    """Return the predicted memory of the original and of the rewritten program, or the reason for unknown bytes."""
    keep = frozenset(ScopedVariable(0, name) for name in request.keep)
    try:
        before = before or predict_memory(sizes, keep, request.trips)
        if names_only:  # same order of operators, so same lower bound
            after = predict_memory_of(rewritten, BytesOfRenamed(sizes, rewritten), keep, request.trips)
            return before, replace(after, bound=before.bound), ""
        return before, predict_memory(infer_sizes(rewritten, request.shapes, request.dims), keep, request.trips), ""
    except (ModelError, PlanError) as error:
        return None, None, str(error)


def _with_arena_form(
    program: PaddleProgram, sizes: VariableSizes, transpiled: Transpiled, request: TranspileRequest
) -> Transpiled:
    """Return the arena form of a rewritten program. Raises ModelError for open extents without a value."""
    form = to_arena_form(
        transpiled.program, infer_sizes(transpiled.program, request.shapes, request.dims), request.keep
    )
    arena_program = with_lasting_arena(form.program) if request.lasting else form.program
    judgement, _ = _check_equivalence(program, arena_program, sizes, request)
    report = ArenaReport(form.bytes, form.bound, len(form.places), form.outside, judgement)
    after = transpiled.report.after
    if after is not None:  # a lasting arena counts like an arena allocated in each run
        sizes_in_arena = BytesInArena(infer_sizes(form.program, request.shapes, request.dims), frozenset(form.places))
        keep = frozenset(ScopedVariable(0, name) for name in request.keep)
        after = replace(predict_memory_of(form.program, sizes_in_arena, keep, request.trips), bound=after.bound)
    return Transpiled(arena_program, replace(transpiled.report, after=after, arena=report))
