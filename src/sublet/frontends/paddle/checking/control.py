"""Symbolic execution of blocks, loops, branches and their gradients: scopes, garbage collection, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.frontends.paddle.checking.arrays import ARRAYS
from sublet.frontends.paddle.checking.computing import computed
from sublet.frontends.paddle.checking.machine import Run, Step
from sublet.frontends.paddle.checking.storage import Allocation, Array, Place, Scope, Variable, tensor
from sublet.frontends.paddle.checking.terms import Term
from sublet.frontends.paddle.format.program import EMPTY, GRAD, Block, Op, Program

NO_MEMORY = ("XShape", "ReserveSpace")
"""Output slots with extents, but without bytes on a CPU."""
MOST_ROUNDS = 4096
"""Limit of iterations of a loop with a known condition. Beyond, the checker reports the finding "rounds"."""


def run_block(run: Run, index: int, scope: Scope, kept: frozenset[str]) -> None:
    """Run the operators of a block, and free the block's variables after the last mention, except those in `kept`."""
    block = run.program.blocks[index]
    for var in block.vars.values():
        if var.persistable:
            run.top.here(var.name)
        else:
            scope.here(var.name)
    freed = _last_mentions(block, kept | run.keep)
    for i, op in enumerate(block.ops):
        step = Step(run, block, i, op, scope)
        if op.type in APPLIED:
            step.require_applied(step.applied())
        SPECIAL.get(op.type, computed)(step)
        for name in freed.get(i, ()):
            scope.variables[name] = _gone(run, step)


def _gone(run: Run, step: Step) -> Variable:
    """Return a variable with lost content, for a name freed after the step."""
    return tensor(run.terms.lost(f"was freed after {step.where}, which is the last of its block to name it"), 1)


def _last_mentions(block: Block, kept: frozenset[str]) -> dict[int, list[str]]:
    """Return the variables that the executor frees, by the index of the operator before the free."""
    last = {name: i for i, op in enumerate(block.ops) for name in (*op.reads, *op.writes)}
    freed: dict[int, list[str]] = {}
    for name, i in last.items():
        if name in block.vars and not block.vars[name].persistable and name not in kept:
            freed.setdefault(i, []).append(name)
    return freed


def _kept_for_gradient(program: Program, index: int) -> frozenset[str]:
    """Return the names that a block keeps until its gradient runs: all names in the gradient block."""
    gradients = [block for block in program.blocks if block.forward == index]
    return frozenset(name for block in gradients for op in block.ops for name in (*op.reads, *op.writes))


def _while(step: Step) -> None:
    """Run a loop. A training loop keeps a scope for each iteration."""
    run, program, op = step.run, step.run.program, step.op
    inner = op.block()
    assert inner is not None
    training = not _true(op, "is_test")
    for name in op.inputs.get("X", ()):  # Paddle looks them up even without an iteration
        variable = step.variable(name)
        if variable is None or (variable.place is None and variable.array is None and not variable.scopes):
            step.absent(name)
    kept = _kept_for_gradient(program, inner) if training else frozenset()
    rounds: list[Scope] = []
    single = Scope(step.scope)
    count = 0
    while _goes_on(step, count):
        scope = Scope(step.scope) if training else single
        copied = _copied_inputs(step, program.blocks[inner]) if training else {}
        run_block(run, inner, scope, kept)
        scope.variables.update(copied)
        rounds.append(scope)
        count += 1
    if step.one("StepScopes"):
        step.scope.found(step.one("StepScopes")).scopes = rounds


def _goes_on(step: Step, count: int) -> bool:
    """Return True if the loop runs another iteration.

    The condition decides if its value is known; otherwise the loop runs the requested number of iterations.
    """
    term = step.read(step.one("Condition"))
    condition = step.run.terms.literal.get(term)
    alike = step.observe(term)
    if condition is None:
        step.run.asked = True
        return count < step.run.trips
    if not alike:
        return False  # the programs already differ: stop here
    if condition and count == MOST_ROUNDS:
        step.run.tell(step.where, f"takes more than {MOST_ROUNDS} rounds, which are not followed", "rounds")
        return False
    return bool(condition)


def _copied_inputs(step: Step, body: Block) -> dict[str, Variable]:
    """Return the snapshot of inputs that a training loop saves at the start of an iteration for its gradient.

    The snapshot has all tensors except parameters and names both read and written by an operator of the body.
    """
    updated = {name for op in body.ops for name in set(op.reads) & set(op.writes)}
    saved = {}
    for name in step.op.inputs.get("X", ()):
        var = step.run.program.blocks[0].vars.get(name)
        variable = step.variable(name)
        if name in updated or (var is not None and var.parameter) or variable is None or variable.place is None:
            continue
        term = variable.place.term
        saved[name] = tensor(step.run.terms.lost(name) if term is None else term, variable.place.nbytes)
        saved[name].shown = variable.shown
    return saved


def _while_grad(step: Step) -> None:
    """Run the gradient of a loop: the gradient block in the scope of each iteration, the last iteration first."""
    run, op, scope = step.run, step.op, step.scope
    inner = op.block()
    assert inner is not None
    variable = scope.find(step.one("StepScopes"))
    outside = op.inputs.get(f"Out{GRAD}", ())
    names = op.attrs.get("original_output_grad")
    inside = names.value if names is not None and isinstance(names.value, tuple) else outside
    inputs, gradients = op.inputs.get("X", ()), op.outputs.get(f"X{GRAD}", ())
    kept = frozenset([*map(str, inside), *(f"{name}{GRAD}" for name in inputs)])
    first = True
    for body in reversed(variable.scopes if variable else ()):
        for outer, own in zip(outside, inside, strict=True):
            body.here(str(own)).be(_nothing_as_zeros(step, outer, scope.find(outer)))
        run_block(run, inner, body, kept)
        for outer, own in zip(outside, inside, strict=True):
            _written_within(run, scope.find(outer), body.here(str(own)))
        for name, gradient in zip(inputs, gradients, strict=False):
            found = body.find(f"{name}{GRAD}")
            if gradient in (EMPTY, "") or found is None:
                continue
            if found.array is None and f"{name}{GRAD}" not in body.variables:  # Paddle looks only in the block's scope
                step.missing(f"{name}{GRAD}", f"%{name}{GRAD} is no variable of the block that it runs")
            target = scope.found(gradient)
            if found.array is not None:
                target.be(Variable(array=found.array))
            elif gradient in outside and not first:
                target.be(found)
            else:
                inner_step = Step(run, run.program.blocks[inner], len(run.program.blocks[inner].ops), op, body)
                begun = run.terms.of("zeros") if first else step.read(gradient)
                total = run.terms.of("total", begun, inner_step.read(f"{name}{GRAD}"))
                if first:
                    target.place = None
                step.write(gradient, total)
        first = False
    if variable:
        variable.scopes = []


def _nothing_as_zeros(step: Step, name: str, given: Variable | None) -> Variable:
    """Return the gradient of a loop output at the start of an iteration: the outer gradient, or zeros if missing."""
    if given is None or (given.place is None and given.array is None):
        return tensor(step.run.terms.of("zeros for", name.removesuffix(GRAD)), 1)
    array = None if given.array is None else Array(dict(given.array.elements), given.array.source)
    return Variable(given.place, given.shown, array)


def _written_within(run: Run, given: Variable | None, own: Variable) -> None:
    """Give the outer gradient the content written by an iteration to the shared place, if shape and type are equal."""
    if given is None or given.place is None or given.place != own.place or given.shown is None or own.shown is None:
        return
    before, now = ((run.terms.dims.get(term), run.known.dtypes.get(term)) for term in (given.shown, own.shown))
    if before == now and None not in now:
        given.shown = own.shown


def _conditional(step: Step) -> None:
    """Run the block of a branch if the branch is taken, and keep its scope."""
    run, op = step.run, step.op
    inner = op.block()
    assert inner is not None
    if not _taken(step):
        return
    scope = Scope(step.scope)
    if step.one("Scope"):
        step.scope.found(step.one("Scope")).scopes = [scope]
    run_block(run, inner, scope, _kept_for_gradient(run.program, inner))


def _conditional_grad(step: Step) -> None:
    """Run the gradient of a branch; the gradients of a branch not taken are zeros."""
    run, op = step.run, step.op
    inner = op.block()
    assert inner is not None
    inputs = op.inputs.get("Input", op.inputs.get("X", ()))
    gradients = op.outputs.get(f"Input{GRAD}", op.outputs.get(f"X{GRAD}", ()))
    variable = step.scope.find(step.one("Scope"))
    if not _taken(step) or variable is None or not variable.scopes:
        for name, gradient in zip(inputs, gradients, strict=False):
            if gradient not in (EMPTY, ""):
                step.write(gradient, run.terms.of("zeros like", step.shape(name)))
        return
    body = variable.scopes[0]
    kept = frozenset(f"{name}{GRAD}" for name in inputs)
    run_block(run, inner, body, kept)
    last = Step(run, run.program.blocks[inner], len(run.program.blocks[inner].ops), op, body)
    for name, gradient in zip(inputs, gradients, strict=False):
        if gradient not in (EMPTY, ""):
            found = f"{name}{GRAD}" in body.variables  # Paddle looks only in the block's scope
            term = last.read(f"{name}{GRAD}") if found else run.terms.of("zeros like", step.shape(name))
            step.write(gradient, term)
    variable.scopes = []


def _taken(step: Step) -> bool:
    """Observe the conditions of a branch and return True if all hold."""
    conditions = [step.read(name) for name in step.op.inputs.get("Cond", ())]
    for condition in conditions:
        step.observe(condition)
    return all(step.run.choices.holds(condition) for condition in conditions)


def _true(op: Op, name: str) -> bool:
    """Return True if the attribute exists and is true."""
    attr = op.attrs.get(name)
    return attr is not None and attr.value is True


def _select_input(step: Step) -> None:
    """Execute `select_input`: the mask picks an input."""
    _hand_on(step, step.read(step.op.inputs["X"][_chosen(step)]), step.one("Out"))


def _select_output(step: Step) -> None:
    """Execute `select_output`: the mask picks an output."""
    chosen = step.op.outputs["Out"][_chosen(step)]
    if chosen != EMPTY:
        _hand_on(step, step.read(step.one("X")), chosen)


def _hand_on(step: Step, term: Term, name: str) -> None:
    """Write a term to a name. A missing value leaves the name unchanged."""
    if term != step.run.terms.nothing:
        step.write(name, term)


def _chosen(step: Step) -> int:
    """Return the index of the tensor picked by the mask."""
    mask = step.read(step.one("Mask"))
    step.observe(mask)
    return int(step.run.choices.holds(mask))


def _assign(step: Step) -> None:
    """Execute `assign` for a tensor or an array."""
    source = step.variable(step.one("X"))
    if source is not None and source.array is not None:
        array = source.array
        step.scope.found(step.one("Out")).array = Array(dict(array.elements), array.source)
        return
    term = step.read(step.one("X"))
    step.assigned(term)
    place, read = step.place(step.one("Out"), term), source.place if source is not None else None
    if read is not None and place.meets(read) and place.begin != read.begin:
        term = step.run.terms.lost(f"was written by {step.where} over what it was still reading")
    step.write(step.one("Out"), term, place)


def _share_data(step: Step) -> None:
    """Execute `share_data`: Out becomes a view of X, so a write to either changes both.

    The checker does not model views of persistable variables, which the next run might overwrite. A view of a variable
    without memory fails in Paddle.
    """
    name = step.one("X")
    source, var = step.variable(name), step.run.program.var(step.block.index, name)
    bare = any(name in op.outputs.get(slot, ()) for op in step.block.ops for slot in NO_MEMORY)
    if source is None or source.place is None or bare or (var is not None and var.persistable):
        computed(step)
        return
    step.write(step.one("Out"), step.read(name), source.place)


def _depend(step: Step) -> None:
    """Execute `depend`: X, a single tensor, keeps its name and waits for the tensors in `Dep`; Paddle computes nothing.

    Paddle's code only requires X and Out to be the same variable (2.6.2, 3.0.0, 3.3.1).
    """
    names, variable = step.op.inputs.get("X", ()), step.variable(step.one("X"))
    if len(names) != 1 or names != step.op.outputs.get("Out") or variable is None or variable.array is not None:
        computed(step)
        return
    for name in step.op.reads:
        step.read(name)


def _logical_not(step: Step) -> None:
    """Execute `logical_not`."""
    step.write(step.one("Out"), step.run.terms.of("not", step.read(step.one("X"))))


def _cast(step: Step) -> None:
    """Execute `cast`; a known scalar keeps its value."""
    term = step.read(step.one("X"))
    cast = step.run.terms.of("cast", term, str(step.op.attrs.get("out_dtype")))
    literal = step.run.terms.literal.get(term)
    if literal is not None:
        step.run.terms.literal[cast] = literal
    step.write(step.one("Out"), cast)


def _feed(step: Step) -> None:
    """Execute `feed`."""
    step.write(step.one("Out"), step.run.terms.of("fed", step.one("Out")))


def _fetch(step: Step) -> None:
    """Execute `fetch`."""
    step.observe(step.read(step.one("X")))


def _view(step: Step) -> None:
    """Execute `view_slice`: a range of a tensor's first dimension, in the tensor's own bytes."""
    source = step.variable(step.one("input"))
    var = step.run.program.var(step.block.index, step.one("input"))
    if source is None or source.place is None or var is None or var.dtype is None:
        step.run.tell(step.where, "takes a view of what is no tensor", "view")
        return
    width = var.dtype.bits // 8
    for size in var.dims[1:]:
        width *= size
    begin, end = (int(step.op.attrs[name].value) * width for name in ("begin_idx", "end_idx"))  # type: ignore[arg-type]
    if not 0 <= begin <= end <= source.place.nbytes:
        step.run.tell(step.where, f"the view of bytes {begin} to {end} leaves its tensor", "view")
        return
    target = step.scope.found(step.one("out"))
    target.be(Variable(Place(source.place.allocation, source.place.begin + begin, end - begin)))


def _empty(step: Step) -> None:
    """Execute `empty`: allocate memory with unwritten content."""
    var = step.run.program.var(step.block.index, step.one("Out"))
    nbytes = var.dtype.bits // 8 if var is not None and var.dtype is not None else 1
    shape = step.op.attrs["shape"].value if "shape" in step.op.attrs else ()
    for size in shape if isinstance(shape, tuple) else ():
        nbytes *= int(size)  # type: ignore[arg-type]
    place = Place(Allocation(max(1, nbytes)), 0, max(1, nbytes))
    step.write(step.one("Out"), step.run.terms.lost("was never written"), place)


APPLIED = {"cast", "logical_not", *ARRAYS}
"""Special operators with whole operands, checked against the original like ordinary operators (`compute_outputs`)."""

SPECIAL: Mapping[str, Callable[[Step], None]] = {
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
    "feed": _feed,
    "fetch": _fetch,
    "view_slice": _view,
    "empty": _empty,
    **ARRAYS,
}
