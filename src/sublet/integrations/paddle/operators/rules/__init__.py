"""Shape rules of Paddle's operators by name; rules for gradients and optimizers follow from slot names."""

from __future__ import annotations

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims
from sublet.integrations.paddle.operators.rules import elementwise, images, layout, linear
from sublet.integrations.paddle.operators.rules.call import (
    Operand,
    PaddleCall,
    Result,
    Rule,
    UnknownRank,
    element_count,
    known_elements,
)

RULES: dict[str, Rule] = {
    **elementwise.RULES, **images.RULES, **layout.RULES, **linear.RULES,
}  # fmt: skip

GRADIENT = "@GRAD"


def has_rule(call: PaddleCall) -> bool:
    """Return True if the operator has a rule, or if the slot names determine some output."""
    return call.type in RULES or bool(_infer_by_slots(call))


def infer_outputs(call: PaddleCall) -> dict[str, tuple[Operand, ...]]:
    """Return the known facts about the outputs, by slot. Raises SpecError if the operands do not match."""
    rule = RULES.get(call.type, _infer_by_slots)
    try:
        inferred = rule(call)
    except UnknownRank:
        inferred = {}
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise SpecError(f"has invalid attributes or shapes: {error}") from error
    checked = {slot: tuple(Operand(_require_valid_extents(dims)) for dims in every) for slot, every in inferred.items()}
    if checked.get("Out") and len(checked["Out"]) == 1:
        checked["Out"] = (Operand(checked["Out"][0].dims, known_elements(call)),)
    return checked


def _require_valid_extents(dims: Dims) -> Dims:
    """Return the extents. Raises SpecError for a negative extent."""
    if dims is not None and any(extent is not None and extent < 0 for extent in dims):
        raise SpecError(f"would have an extent below 0: {list(dims)}")
    return dims


def _infer_by_slots(call: PaddleCall) -> Result:
    """Return extents by slot names: a gradient has the operand's extents, an updated tensor the extents before."""
    inferred: dict[str, list[Dims]] = {}
    for slot, count in call.outputs.items():
        source = slot.removesuffix(GRADIENT) if slot.endswith(GRADIENT) else slot.removesuffix("Out")
        operands = call.inputs.get(source, ())
        if source != slot and len(operands) == count:
            inferred[slot] = [operand.dims for operand in operands]
    # a gradient without operand X reads Out instead, of the same extents
    if "X" not in call.inputs and call.type.removesuffix("_grad") in elementwise.UNARY:
        inferred["X@GRAD"] = [operand.dims for operand in call.inputs.get(f"Out{GRADIENT}", ())]
    if call.type in ("lookup_table_grad", "lookup_table_v2_grad") and call.attrs.get("is_sparse"):
        inferred["W@GRAD"] = [(element_count(call.dims("Ids")), call.dims("W")[-1])]
    return inferred
