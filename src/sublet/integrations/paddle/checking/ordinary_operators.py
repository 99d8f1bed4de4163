"""Symbolic execution of an ordinary operator: output terms, checks of in-place safety, and known scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sublet.integrations.paddle.checking.storage import AllocationRange, Term, TermArray
from sublet.integrations.paddle.checking.symbolic_machine import SymbolicRun, SymbolicStep, never_written_text
from sublet.integrations.paddle.format.program import ARRAY, EMPTY_NAME, PaddleOp
from sublet.integrations.paddle.operators.facts import OpFacts


def compute_outputs(step: SymbolicStep) -> None:
    """Execute an operator that computes its outputs from its inputs.

    An output is a lost term if the operator writes over an operand during the computation, if two outputs overlap, or
    if the operator compares only allocations and the output is not at the place of an input.
    """
    run, op, known = step.run, step.op, step.facts
    applied = step.application()
    step.require_known_application(applied)
    reads: list[tuple[str, int, AllocationRange]] = []
    for slot, names in sorted(op.inputs.items()):
        for position, name in enumerate(names):
            if name == EMPTY_NAME:
                continue
            variable = step.find_variable(name)
            if slot in known.shape_only:
                step.shape_term(name)
                continue
            if step.read_term(name) == run.terms.nothing and name in op.writes:
                # the write allocates memory, so Paddle computes on unwritten bytes instead of a failure
                step.report_missing(f"{slot}, written over", never_written_text(name))
            if variable is not None and variable.place is not None:
                reads.append((slot, position, variable.place))
    result = ("op", *applied, *_index_of_draw(step))
    written: list[tuple[str, str, Term, AllocationRange]] = []
    for slot, name, position in _outputs_of(op):
        term = run.terms.term_of("result", run.terms.term_of(*result), slot, position)
        _note_literal(step, term)
        written.append((slot, name, term, step.place_for_write(name, term)))
    for slot, _, term, place in written:
        for source, _, other in reads:
            if known.holder and (source, slot) in known.equal and place == other:
                _note_same_bits(run, term, other.term)
    # an operator that overwrites an operand during the computation destroys all of its outputs
    spoiled = next(
        filter(None, (_reason_if_destroyed(step, known, slot, name, place, reads) for slot, name, _, place in written)),
        "",
    )
    for i, (slot, name, term, place) in enumerate(written):
        why = spoiled
        if any(place.overlaps(other) for *_, other in written[:i] + written[i + 1 :]):
            why = "overlaps another output of the same op"
        on = any(place.begin == p.begin and _may_be_view_at(known, source, k, slot) for source, k, p in reads)
        if known.holder and not on and any(place.allocation is p.allocation and place != p for *_, p in reads):
            why = f"was not written by {step.where}, which treats two places of one allocation as one"
        variable = step.find_variable(name)
        var = run.program.find_var(step.block.index, name)
        if var is not None and var.kind == ARRAY:
            step.scope.find_or_create(name).array = TermArray(source=term)
        elif variable is None or variable.array is None:
            step.write_term(name, run.terms.lost_term(why) if why else term, place)


def _note_same_bits(run: SymbolicRun, term: Term, copied: Term | None) -> None:
    """Note that a reshape gave `term` the bits of `copied`, if both have the same size.

    A reader of the place by the old name then finds the old bits. Further copying operators do not copy bit by bit in
    every case: a sum over a single element turns -0.0 into 0.0, or changes the type.
    """
    nbytes = run.known.nbytes
    if copied is not None and copied in nbytes and nbytes.get(term) == nbytes[copied]:
        run.terms.bits[term] = copied


def _outputs_of(op: PaddleOp) -> Iterator[tuple[str, str, int]]:
    """Yield the slot, name and position of each output."""
    for slot, names in sorted(op.outputs.items()):
        for position, name in enumerate(names):
            if name not in (EMPTY_NAME, ""):
                yield slot, name, position


def _reason_if_destroyed(
    step: SymbolicStep,
    known: OpFacts,
    slot: str,
    name: str,
    place: AllocationRange,
    reads: list[tuple[str, int, AllocationRange]],
) -> str:
    """Return the reason for a destroyed output: the operator writes over an operand still in use. Return "" if safe."""
    op = step.op
    for source, position, other in reads:
        if not place.overlaps(other):
            continue
        first = position == 0 and (source, slot) in known.inplace_first
        by_name = name in op.reads and ((source, slot) in known.inplace or first)
        safe = by_name or (name not in op.reads and _may_be_view_at(known, source, position, slot))
        usual = (op.type, source, slot) in step.run.original_inplace
        if (place.begin, place.end) != (other.begin, other.end) or not (usual or safe):
            return f"was computed by {step.where}, which overwrote its operand {source} while reading it"
    return ""


def _may_be_view_at(known: OpFacts, source: str, position: int, slot: str) -> bool:
    """Return True if the output may be a view at the place of the given argument."""
    return (source, slot) in known.placed or (position == 0 and (source, slot) in known.placed_first)


def _index_of_draw(step: SymbolicStep) -> tuple[int, ...]:
    """Return the index of the operator among all random draws as a tuple; () for a deterministic operator."""
    if "seed" not in step.op.attrs or step.op.type.endswith("_grad"):
        return ()
    step.run.random_draws += 1
    return (step.run.random_draws,)


COMPARISONS = {
    "less_than": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater_than": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
}


SCALAR_OPERATORS = {"increment", "scale", *COMPARISONS}


def _note_literal(step: SymbolicStep, term: Term) -> None:
    """Note the scalar value of a result, if known: loop counters and their comparisons."""
    value = _scalar_result(step)
    if value is not None:
        step.run.terms.literal[term] = value


def _scalar_result(step: SymbolicStep) -> float | None:
    """Return the scalar value of the operator's result, or None."""
    op, terms = step.op, step.run.terms
    attrs: Mapping[str, object] = {name: attr.value for name, attr in op.attrs.items()}
    if op.type == "fill_constant":
        shape, value = attrs.get("shape"), attrs.get("value")
        one = isinstance(shape, (list, tuple)) and all(size == 1 for size in shape)
        given = any(op.inputs.get(slot) for slot in ("ValueTensor", "ShapeTensor", "ShapeTensorList"))
        return float(value) if one and not given and isinstance(value, (int, float)) else None
    if op.type not in SCALAR_OPERATORS:
        return None
    names = [
        step.op.first_input(slot) or EMPTY_NAME for slot in ("X", "Y")
    ]  # layer_norm has an output Y: read inputs only
    numbers = [terms.literal.get(step.read_term(name)) if name != EMPTY_NAME else None for name in names]
    x, y = numbers
    if x is None:
        return None
    if op.type == "increment":
        return x + float(attrs.get("step", 1.0))  # type: ignore[arg-type]
    if op.type == "scale" and not op.inputs.get("ScaleTensor"):
        return x * float(attrs.get("scale", 1.0)) + float(attrs.get("bias", 0.0))  # type: ignore[arg-type]
    if op.type in COMPARISONS and y is not None:
        return float(COMPARISONS[op.type](x, y))
    return None
