"""The rule of each operator; gradients and optimisers by the conventions of their slots."""

from __future__ import annotations

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims
from sublet.frontends.paddle.operators.rules import elementwise, images, layout, linear, sequences
from sublet.frontends.paddle.operators.rules.call import Call, Open, Operand, Result, Rule, product
from sublet.frontends.paddle.operators.rules.values import elements

RULES: dict[str, Rule] = {
    **elementwise.RULES, **images.RULES, **layout.RULES, **linear.RULES, **sequences.RULES,
}  # fmt: skip

GRADIENT = "@GRAD"


def known(call: Call) -> bool:
    """Whether there is a rule for an operator, or a convention."""
    return call.type in RULES or bool(_by_slots(call))


def results(call: Call) -> dict[str, tuple[Operand, ...]]:
    """What is known of the outputs, by slot. Raises SpecError when the operands do not fit."""
    rule = RULES.get(call.type, _by_slots)
    try:
        found = rule(call)
    except Open:
        found = {}
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise SpecError(f"has attributes or shapes that make no sense: {error}") from error
    checked = {slot: tuple(Operand(_checked(dims)) for dims in every) for slot, every in found.items()}
    if checked.get("Out") and len(checked["Out"]) == 1:
        checked["Out"] = (Operand(checked["Out"][0].dims, elements(call)),)
    return checked


def _checked(dims: Dims) -> Dims:
    if dims is not None and any(extent is not None and extent < 0 for extent in dims):
        raise SpecError(f"would have an extent below 0: {list(dims)}")
    return dims


def _by_slots(call: Call) -> Result:
    """A gradient has the extents of what it is the gradient of, an optimiser's output those of what it updates."""
    found: dict[str, list[Dims]] = {}
    for slot, count in call.outputs.items():
        of = slot.removesuffix(GRADIENT) if slot.endswith(GRADIENT) else slot.removesuffix("Out")
        operands = call.inputs.get(of, ())
        if of != slot and len(operands) == count:
            found[slot] = [operand.dims for operand in operands]
    if "X" not in call.inputs and call.type.removesuffix("_grad") in elementwise.UNARY:  # it reads Out in place of X
        found["X@GRAD"] = [operand.dims for operand in call.inputs.get(f"Out{GRADIENT}", ())]
    if call.type in ("lookup_table_grad", "lookup_table_v2_grad") and call.attrs.get("is_sparse"):
        found["W@GRAD"] = [(product(call.dims("Ids")), call.dims("W")[-1])]
    return found
