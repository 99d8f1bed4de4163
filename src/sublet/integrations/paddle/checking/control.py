"""Symbolic execution of blocks, loops, branches and their gradients: scopes, garbage collection, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.integrations.paddle.checking.ordinary_operators import compute_outputs
from sublet.integrations.paddle.checking.storage import (
    Allocation,
    AllocationRange,
    Term,
    TermArray,
    TermScope,
    TermVariable,
    new_tensor,
)
from sublet.integrations.paddle.checking.symbolic_machine import SymbolicRun, SymbolicStep
from sublet.integrations.paddle.format.program import EMPTY_NAME, GRAD, PaddleBlock, PaddleOp, PaddleProgram

# Symbolic execution of tensor array operators: element access, and split and merge by rank table.


def _write_element(step: SymbolicStep) -> None:
    """Execute `write_to_array`. A write without a value leaves the element unchanged, as in Paddle."""
    index = step.run.integer_value(step.read_term(step.single_name("I")), step.where)
    variable = step.scope.find_or_create(step.single_name("Out"))
    array = variable.array or TermArray()
    if index is not None:
        term = step.read_term(step.single_name("X"))
        if term == step.run.terms.nothing:  # a write of nothing leaves the element unchanged
            there = array.element(step.run.terms, index)
            term = term if there is None else there
        variable.array = TermArray(array.elements | {index: term}, array.source)


def _read_element(step: SymbolicStep) -> None:
    """Execute `read_from_array`. A missing gradient element reads as zeros with the shape of `X_W`."""
    index = step.run.integer_value(step.read_term(step.single_name("I")), step.where)
    variable = step.find_variable(step.single_name("X"))
    term = None
    if index is not None and variable is not None and variable.array is not None:
        term = variable.array.element(step.run.terms, index)
    like = step.single_name("X_W")  # a missing gradient is zeros in the shape of its variable
    if term is None:
        term = step.run.terms.term_of("zeros like", step.shape_term(like)) if like else None
    if term is None or term == step.run.terms.nothing:
        step.report_absent_operand(step.single_name("X"))
        step.scope.find_or_create(step.single_name("Out")).take_over(TermVariable())
    else:
        step.write_term(step.single_name("Out"), term)


def _split_by_rank_table(step: SymbolicStep) -> None:
    """Execute `lod_tensor_to_array`."""
    parts = step.run.terms.term_of(
        "apart", step.read_term(step.single_name("X")), step.read_term(step.single_name("RankTable"))
    )
    step.scope.find_or_create(step.single_name("Out")).array = TermArray(source=parts)


def _merge_by_rank_table(step: SymbolicStep) -> None:
    """Execute `array_to_lod_tensor`."""
    whole = step.run.terms.term_of(
        "together", step.read_term(step.single_name("X")), step.read_term(step.single_name("RankTable"))
    )
    step.write_term(step.single_name("Out"), whole)


ARRAY_OPERATORS: Mapping[str, Callable[[SymbolicStep], None]] = {
    "write_to_array": _write_element,
    "read_from_array": _read_element,
    "lod_tensor_to_array": _split_by_rank_table,
    "array_to_lod_tensor": _merge_by_rank_table,
}


SLOTS_WITHOUT_MEMORY = ("XShape", "ReserveSpace")
"""Output slots with extents, but without bytes on a CPU."""
MAX_ITERATIONS = 4096
"""Limit of iterations of a loop with a known condition. Beyond, the checker reports the finding "rounds"."""


def run_block(run: SymbolicRun, index: int, scope: TermScope, kept: frozenset[str]) -> None:
    """Run the operators of a block, and free the block's variables after the last mention, except those in `kept`."""
    block = run.program.blocks[index]
    for var in block.vars.values():
        if var.persistable:
            run.top.local(var.name)
        else:
            scope.local(var.name)
    freed = _last_mentions(block, kept | run.keep)
    for i, op in enumerate(block.ops):
        step = SymbolicStep(run, block, i, op, scope)
        if op.type in COMPARED_APPLICATIONS:
            step.require_known_application(step.application())
        SPECIAL_OPERATORS.get(op.type, compute_outputs)(step)
        for name in freed.get(i, ()):
            scope.variables[name] = _freed_variable(run, step)


def _freed_variable(run: SymbolicRun, step: SymbolicStep) -> TermVariable:
    """Return a variable with lost content, for a name freed after the step."""
    return new_tensor(run.terms.lost_term(f"was freed after {step.where}, its last use in the block"), 1)


def _last_mentions(block: PaddleBlock, kept: frozenset[str]) -> dict[int, list[str]]:
    """Return the variables that the executor frees, by the index of the operator before the free."""
    last = {name: i for i, op in enumerate(block.ops) for name in (*op.reads, *op.writes)}
    freed: dict[int, list[str]] = {}
    for name, i in last.items():
        if name in block.vars and not block.vars[name].persistable and name not in kept:
            freed.setdefault(i, []).append(name)
    return freed


def _names_kept_for_gradient(program: PaddleProgram, index: int) -> frozenset[str]:
    """Return the names that a block keeps until its gradient runs: all names in the gradient block."""
    gradients = [block for block in program.blocks if block.forward == index]
    return frozenset(name for block in gradients for op in block.ops for name in (*op.reads, *op.writes))


def _while(step: SymbolicStep) -> None:
    """Run a loop. A training loop keeps a scope for each iteration."""
    run, program, op = step.run, step.run.program, step.op
    inner = op.block_index()
    assert inner is not None
    training = not _is_true(op, "is_test")
    for name in op.inputs.get("X", ()):  # Paddle looks them up even without an iteration
        variable = step.find_variable(name)
        if variable is None or (variable.place is None and variable.array is None and not variable.scopes):
            step.report_absent_operand(name)
    kept = _names_kept_for_gradient(program, inner) if training else frozenset()
    rounds: list[TermScope] = []
    single = TermScope(step.scope)
    count = 0
    while _has_next_iteration(step, count):
        scope = TermScope(step.scope) if training else single
        copied = _snapshot_inputs(step, program.blocks[inner]) if training else {}
        run_block(run, inner, scope, kept)
        scope.variables.update(copied)
        rounds.append(scope)
        count += 1
    if step.single_name("StepScopes"):
        step.scope.find_or_create(step.single_name("StepScopes")).scopes = rounds


def _has_next_iteration(step: SymbolicStep, count: int) -> bool:
    """Return True if the loop runs another iteration.

    The condition decides if its value is known; otherwise the loop runs the requested number of iterations.
    """
    term = step.read_term(step.single_name("Condition"))
    condition = step.run.terms.literal.get(term)
    agrees = step.observe(term)
    if condition is None:
        step.run.used_requested_trips = True
        return count < step.run.trips
    if not agrees:
        return False  # the programs already differ: stop here
    if condition and count == MAX_ITERATIONS:
        step.run.add_finding(
            step.where, f"runs more than {MAX_ITERATIONS} iterations, the limit of the checker", "rounds"
        )
        return False
    return bool(condition)


def _snapshot_inputs(step: SymbolicStep, body: PaddleBlock) -> dict[str, TermVariable]:
    """Return the snapshot of inputs that a training loop saves at the start of an iteration for its gradient.

    The snapshot has all tensors except parameters and names both read and written by an operator of the body.
    """
    updated = {name for op in body.ops for name in set(op.reads) & set(op.writes)}
    saved = {}
    for name in step.op.inputs.get("X", ()):
        var = step.run.program.blocks[0].vars.get(name)
        variable = step.find_variable(name)
        if name in updated or (var is not None and var.parameter) or variable is None or variable.place is None:
            continue
        term = variable.place.term
        saved[name] = new_tensor(step.run.terms.lost_term(name) if term is None else term, variable.place.nbytes)
        saved[name].last_written = variable.last_written
    return saved


def _while_grad(step: SymbolicStep) -> None:
    """Run the gradient of a loop: the gradient block in the scope of each iteration, the last iteration first."""
    run, op, scope = step.run, step.op, step.scope
    inner = op.block_index()
    assert inner is not None
    variable = scope.find(step.single_name("StepScopes"))
    outside = op.inputs.get(f"Out{GRAD}", ())
    names = op.attrs.get("original_output_grad")
    inside = names.value if names is not None and isinstance(names.value, tuple) else outside
    inputs, gradients = op.inputs.get("X", ()), op.outputs.get(f"X{GRAD}", ())
    kept = frozenset([*map(str, inside), *(f"{name}{GRAD}" for name in inputs)])
    first = True
    for body in reversed(variable.scopes if variable else ()):
        for outer, own in zip(outside, inside, strict=True):
            body.local(str(own)).take_over(_gradient_or_zeros(step, outer, scope.find(outer)))
        run_block(run, inner, body, kept)
        for outer, own in zip(outside, inside, strict=True):
            _update_outer_gradient(run, scope.find(outer), body.local(str(own)))
        for name, gradient in zip(inputs, gradients, strict=False):
            found = body.find(f"{name}{GRAD}")
            if gradient in (EMPTY_NAME, "") or found is None:
                continue
            if found.array is None and f"{name}{GRAD}" not in body.variables:  # Paddle looks only in the block's scope
                step.report_missing(
                    f"{name}{GRAD}", f"%{name}{GRAD} is not a variable of the block that the operator runs"
                )
            target = scope.find_or_create(gradient)
            if found.array is not None:
                target.take_over(TermVariable(array=found.array))
            elif gradient in outside and not first:
                target.take_over(found)
            else:
                inner_step = SymbolicStep(run, run.program.blocks[inner], len(run.program.blocks[inner].ops), op, body)
                begun = run.terms.term_of("zeros") if first else step.read_term(gradient)
                total = run.terms.term_of("total", begun, inner_step.read_term(f"{name}{GRAD}"))
                if first:
                    target.place = None
                step.write_term(gradient, total)
        first = False
    if variable:
        variable.scopes = []


def _gradient_or_zeros(step: SymbolicStep, name: str, given: TermVariable | None) -> TermVariable:
    """Return the gradient of a loop output at the start of an iteration: the outer gradient, or zeros if missing."""
    if given is None or (given.place is None and given.array is None):
        return new_tensor(step.run.terms.term_of("zeros for", name.removesuffix(GRAD)), 1)
    array = None if given.array is None else TermArray(dict(given.array.elements), given.array.source)
    return TermVariable(given.place, given.last_written, array)


def _update_outer_gradient(run: SymbolicRun, given: TermVariable | None, own: TermVariable) -> None:
    """Give the outer gradient the content written by an iteration to the shared place, if shape and type are equal."""
    if (
        given is None
        or given.place is None
        or given.place != own.place
        or given.last_written is None
        or own.last_written is None
    ):
        return
    before, now = (
        (run.terms.dims.get(term), run.known.dtypes.get(term)) for term in (given.last_written, own.last_written)
    )
    if before == now and None not in now:
        given.last_written = own.last_written


def _conditional(step: SymbolicStep) -> None:
    """Run the block of a branch if the branch is taken, and keep its scope."""
    run, op = step.run, step.op
    inner = op.block_index()
    assert inner is not None
    if not _is_branch_taken(step):
        return
    scope = TermScope(step.scope)
    if step.single_name("Scope"):
        step.scope.find_or_create(step.single_name("Scope")).scopes = [scope]
    run_block(run, inner, scope, _names_kept_for_gradient(run.program, inner))


def _conditional_grad(step: SymbolicStep) -> None:
    """Run the gradient of a branch; the gradients of a branch not taken are zeros."""
    run, op = step.run, step.op
    inner = op.block_index()
    assert inner is not None
    inputs = op.inputs.get("Input", op.inputs.get("X", ()))
    gradients = op.outputs.get(f"Input{GRAD}", op.outputs.get(f"X{GRAD}", ()))
    variable = step.scope.find(step.single_name("Scope"))
    if not _is_branch_taken(step) or variable is None or not variable.scopes:
        for name, gradient in zip(inputs, gradients, strict=False):
            if gradient not in (EMPTY_NAME, ""):
                step.write_term(gradient, run.terms.term_of("zeros like", step.shape_term(name)))
        return
    body = variable.scopes[0]
    kept = frozenset(f"{name}{GRAD}" for name in inputs)
    run_block(run, inner, body, kept)
    last = SymbolicStep(run, run.program.blocks[inner], len(run.program.blocks[inner].ops), op, body)
    for name, gradient in zip(inputs, gradients, strict=False):
        if gradient not in (EMPTY_NAME, ""):
            found = f"{name}{GRAD}" in body.variables  # Paddle looks only in the block's scope
            term = last.read_term(f"{name}{GRAD}") if found else run.terms.term_of("zeros like", step.shape_term(name))
            step.write_term(gradient, term)
    variable.scopes = []


def _is_branch_taken(step: SymbolicStep) -> bool:
    """Observe the conditions of a branch and return True if all hold."""
    conditions = [step.read_term(name) for name in step.op.inputs.get("Cond", ())]
    for condition in conditions:
        step.observe(condition)
    return all(step.run.choices.is_met(condition) for condition in conditions)


def _is_true(op: PaddleOp, name: str) -> bool:
    """Return True if the attribute exists and is true."""
    attr = op.attrs.get(name)
    return attr is not None and attr.value is True


def _select_input(step: SymbolicStep) -> None:
    """Execute `select_input`: the mask picks an input."""
    _write_if_present(step, step.read_term(step.op.inputs["X"][_index_by_mask(step)]), step.single_name("Out"))


def _select_output(step: SymbolicStep) -> None:
    """Execute `select_output`: the mask picks an output."""
    chosen = step.op.outputs["Out"][_index_by_mask(step)]
    if chosen != EMPTY_NAME:
        _write_if_present(step, step.read_term(step.single_name("X")), chosen)


def _write_if_present(step: SymbolicStep, term: Term, name: str) -> None:
    """Write a term to a name. A missing value leaves the name unchanged."""
    if term != step.run.terms.nothing:
        step.write_term(name, term)


def _index_by_mask(step: SymbolicStep) -> int:
    """Return the index of the tensor picked by the mask."""
    mask = step.read_term(step.single_name("Mask"))
    step.observe(mask)
    return int(step.run.choices.is_met(mask))


def _assign(step: SymbolicStep) -> None:
    """Execute `assign` for a tensor or an array."""
    source = step.find_variable(step.single_name("X"))
    if source is not None and source.array is not None:
        array = source.array
        step.scope.find_or_create(step.single_name("Out")).array = TermArray(dict(array.elements), array.source)
        return
    term = step.read_term(step.single_name("X"))
    step.check_assignment(term)
    place, read = step.place_for_write(step.single_name("Out"), term), source.place if source is not None else None
    if read is not None and place.overlaps(read) and place.begin != read.begin:
        term = step.run.terms.lost_term(f"was written by {step.where} over its own operand")
    step.write_term(step.single_name("Out"), term, place)


def _share_data(step: SymbolicStep) -> None:
    """Execute `share_data`: Out becomes a view of X, so a write to either changes both.

    The checker does not model views of persistable variables, which the next run might overwrite. A view of a variable
    without memory fails in Paddle.
    """
    name = step.single_name("X")
    source, var = step.find_variable(name), step.run.program.find_var(step.block.index, name)
    bare = any(name in op.outputs.get(slot, ()) for op in step.block.ops for slot in SLOTS_WITHOUT_MEMORY)
    if source is None or source.place is None or bare or (var is not None and var.persistable):
        compute_outputs(step)
        return
    step.write_term(step.single_name("Out"), step.read_term(name), source.place)


def _depend(step: SymbolicStep) -> None:
    """Execute `depend`: X, a single tensor, keeps its name and waits for the tensors in `Dep`; Paddle computes nothing.

    Paddle's code only requires X and Out to be the same variable (2.6.2, 3.0.0, 3.3.1).
    """
    names, variable = step.op.inputs.get("X", ()), step.find_variable(step.single_name("X"))
    if len(names) != 1 or names != step.op.outputs.get("Out") or variable is None or variable.array is not None:
        compute_outputs(step)
        return
    for name in step.op.reads:
        step.read_term(name)


def _logical_not(step: SymbolicStep) -> None:
    """Execute `logical_not`."""
    step.write_term(step.single_name("Out"), step.run.terms.term_of("not", step.read_term(step.single_name("X"))))


def _cast(step: SymbolicStep) -> None:
    """Execute `cast`; a known scalar keeps its value."""
    term = step.read_term(step.single_name("X"))
    cast = step.run.terms.term_of("cast", term, str(step.op.attrs.get("out_dtype")))
    literal = step.run.terms.literal.get(term)
    if literal is not None:
        step.run.terms.literal[cast] = literal
    step.write_term(step.single_name("Out"), cast)


def _feed_variable(step: SymbolicStep) -> None:
    """Execute `feed`."""
    step.write_term(step.single_name("Out"), step.run.terms.term_of("fed", step.single_name("Out")))


def _fetch_variable(step: SymbolicStep) -> None:
    """Execute `fetch`."""
    step.observe(step.read_term(step.single_name("X")))


def _view(step: SymbolicStep) -> None:
    """Execute `view_slice`: a range of a tensor's first dimension, in the tensor's own bytes."""
    source = step.find_variable(step.single_name("input"))
    var = step.run.program.find_var(step.block.index, step.single_name("input"))
    if source is None or source.place is None or var is None or var.dtype is None:
        step.run.add_finding(step.where, "takes a view of a variable that is not a tensor", "view")
        return
    width = var.dtype.bits // 8
    for size in var.dims[1:]:
        width *= size
    begin, end = (int(step.op.attrs[name].value) * width for name in ("begin_idx", "end_idx"))  # type: ignore[arg-type]
    if not 0 <= begin <= end <= source.place.nbytes:
        step.run.add_finding(step.where, f"the view of bytes {begin} to {end} leaves its tensor", "view")
        return
    target = step.scope.find_or_create(step.single_name("out"))
    target.take_over(TermVariable(AllocationRange(source.place.allocation, source.place.begin + begin, end - begin)))


def _empty(step: SymbolicStep) -> None:
    """Execute `empty`: allocate memory with unwritten content."""
    var = step.run.program.find_var(step.block.index, step.single_name("Out"))
    nbytes = var.dtype.bits // 8 if var is not None and var.dtype is not None else 1
    shape = step.op.attrs["shape"].value if "shape" in step.op.attrs else ()
    for size in shape if isinstance(shape, tuple) else ():
        nbytes *= int(size)  # type: ignore[arg-type]
    place = AllocationRange(Allocation(max(1, nbytes)), 0, max(1, nbytes))
    step.write_term(step.single_name("Out"), step.run.terms.lost_term("was never written"), place)


COMPARED_APPLICATIONS = {"cast", "logical_not", *ARRAY_OPERATORS}
"""Special operators with whole operands, checked against the original like ordinary operators (`compute_outputs`)."""

SPECIAL_OPERATORS: Mapping[str, Callable[[SymbolicStep], None]] = {
    "while": _while,
    "while_grad": _while_grad,
    "conditional_block": _conditional,
    "conditional_block_grad": _conditional_grad,
    "select_input": _select_input,
    "select_output": _select_output,
    "assign": _assign,
    "depend": _depend,
    "share_data": _share_data,
    "logical_not": _logical_not,
    "cast": _cast,
    "feed": _feed_variable,
    "fetch": _fetch_variable,
    "view_slice": _view,
    "empty": _empty,
    **ARRAY_OPERATORS,
}
