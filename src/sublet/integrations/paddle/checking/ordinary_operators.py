"""Symbolic execution of an ordinary operator: output terms, checks of in-place safety, and known scalars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from sublet.base.errors import Finding
from sublet.base.tensor import DType
from sublet.integrations.paddle.checking.storage import AllocationRange, Term, TermArray
from sublet.integrations.paddle.checking.symbolic_machine import SymbolicRun, SymbolicStep, never_written_text
from sublet.integrations.paddle.format.program import (
    ARRAY,
    EMPTY_NAME,
    GRAD,
    TENSOR,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
)
from sublet.integrations.paddle.operators.dialect import OpFacts

# Rules for names and types: declaration of each name, captures of blocks, and operand types of operators.
#
# A block may use a name from outside only if the operator that runs the block lists the name: the executor creates
# variables from declarations, and orders and frees by the lists. Paddle checks operand types before a run, even in
# blocks that never run.

VIEW = "view_slice"
TYPE_AGNOSTIC = (VIEW, "assign", "share_data", "while", "while_grad", "conditional_block", "conditional_block_grad")
"""Operators for operands of any type."""
DEPEND = "depend"
DEPEND_TYPES = {DType.F32, DType.F64, DType.I32, DType.I64}
"""Types of the operand X of `depend`: since 3.0 Paddle has no kernel for further types. The operands `Dep` may have any
type."""

OperandTypes = tuple[str, frozenset[tuple[str, frozenset[DType | None]]]]
"""The type of an operator, and the types of its operands by slot."""


def unlisted_captures(original: PaddleProgram, rewritten: PaddleProgram) -> list[Finding]:
    """Return a finding for each name captured or left by a block without mention by the block's owner.

    A capture already present in the original gives no finding.
    """
    known = {(block, name) for block, name, _ in _name_findings(original)}
    return [finding for block, name, finding in _name_findings(rewritten) if (block, name) not in known]


def new_operand_types(original: PaddleProgram, rewritten: PaddleProgram) -> Iterator[Finding]:
    """Yield each operator of the rewritten program with a combination of operand types absent from the original."""
    known = {types for *_, types in _operand_types(original)}
    for block, i, op, types in _operand_types(rewritten):
        if (
            op.reads
            and types not in known
            and op.type not in TYPE_AGNOSTIC
            and not _is_supported_depend(rewritten, block, op)
        ):
            where = f"block {block.index}, op {i} ({op.type})"
            yield Finding("types", where, "has operand types that no {op.type} of the original program has")


def _operand_types(program: PaddleProgram) -> Iterator[tuple[PaddleBlock, int, PaddleOp, OperandTypes]]:
    """Yield each operator with its operand types."""
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            slots = {
                slot: frozenset(_dtype(program, block, name) for name in names) for slot, names in op.inputs.items()
            }
            yield block, i, op, (op.type, frozenset((slot, dtypes) for slot, dtypes in slots.items() if dtypes))


def _is_supported_depend(program: PaddleProgram, block: PaddleBlock, op: PaddleOp) -> bool:
    """Return True if the operator is a `depend` on tensors of types with a kernel for `depend`."""
    tensors = [program.find_var(block.index, name) for name in op.inputs.get("X", ())]
    return op.type == DEPEND and all(
        var is not None and var.kind == TENSOR and var.dtype in DEPEND_TYPES for var in tensors
    )


def _dtype(program: PaddleProgram, block: PaddleBlock, name: str) -> DType | None:
    """Return the element type of a name; a gradient block also sees variables of its forward block."""
    var = program.find_var(block.index, name)
    if var is None and block.forward >= 0:
        var = program.find_var(block.forward, name)
    return None if var is None else var.dtype


def _name_findings(program: PaddleProgram) -> Iterator[tuple[int, str, Finding]]:
    """Yield a finding for each undeclared name, duplicate loop input and unlisted capture, with its block and name."""
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            for name in (*op.reads, *op.writes):
                if name not in (EMPTY_NAME, "") and not _is_declared(program, block, name):
                    where = f"block {block.index}, op {i} ({op.type})"
                    what = f"%{name} is declared neither in the block nor in an enclosing block"
                    yield block.index, name, Finding("undeclared", where, what)
            inner = op.block_index()
            if inner is None:
                continue
            for name, count in Counter(op.inputs.get("X", ())).items():
                if op.type == "while" and count > 1:
                    where = f"block {block.index}, op {i} (while)"
                    what = f"%{name} is an input more than once, and the loop saves inputs by name"
                    yield inner, name, Finding("twice", where, what)
            listed = {*op.reads, *op.writes, *(f"{name}{GRAD}" for name in op.reads)}
            forward = program.blocks[inner].forward
            listed |= set(program.blocks[forward].vars) if forward >= 0 else set()
            names = op.attrs.get("original_output_grad")
            listed |= set(map(str, names.value)) if names is not None and isinstance(names.value, tuple) else set()
            for position, name in _free_names(program, program.blocks[inner]):
                if name not in listed and not _is_private_to_block(program, block, i, inner, name):
                    where = f"block {inner}, op {position} ({program.blocks[inner].ops[position].type})"
                    owner = f"op {i} ({op.type}) of block {block.index}"
                    what = f"%{name} is read from an enclosing block, and {owner} does not list it"
                    yield inner, name, Finding("unnamed", where, what)


def _is_declared(program: PaddleProgram, block: PaddleBlock, name: str) -> bool:
    """Return True if the block, an enclosing block, or the forward block of a gradient block declares the name."""
    own = program.declaring_block(block.index, name) is not None
    return own or (block.forward >= 0 and program.declaring_block(block.forward, name) is not None)


def _is_private_to_block(program: PaddleProgram, block: PaddleBlock, at: int, inner: int, name: str) -> bool:
    """Return True if only operators of block `inner`, run within operator `at` of `block`, write and read the variable.

    A private variable needs no order and no free in between. Any further mention must come after `at` and wait for
    `at`: it must read a name written by `at`.
    """
    while name not in block.vars and block.parent >= 0:
        around = program.blocks[block.parent]
        at, block = next((i for i, op in enumerate(around.ops) if op.block_index() == block.index), -1), around
    if name not in block.vars or block.vars[name].persistable or at < 0:
        return False
    naming = {each.index for each in program.blocks for op in each.ops if name in (*op.reads, *op.writes)}
    waiting = set(block.ops[at].writes) - {EMPTY_NAME, ""}
    others = [i for i, op in enumerate(block.ops) if name in (*op.reads, *op.writes)]
    late = all(i > at and waiting & {*block.ops[i].reads} for i in others)
    return late and naming - {block.index} == {inner}


def _free_names(program: PaddleProgram, block: PaddleBlock) -> Iterator[tuple[int, str]]:
    """Yield the free names of a block with their operator index, except persistable names and operands of views."""
    for i, op in enumerate(block.ops):
        if op.type == VIEW:
            continue
        for name in dict.fromkeys((*op.reads, *op.writes)):
            var = program.find_var(block.index, name)
            if name not in (EMPTY_NAME, "") and name not in block.vars and not (var is not None and var.persistable):
                yield i, name


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
