"""Constant propagation for small integer tensors, the source of computed shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.frontends.paddle.operators.rules.call import PaddleCall, Values, axis_of

MAX_ELEMENTS = 64
"""Limit of elements: a longer tensor is no shape, and its elements are dropped."""


def known_elements(call: PaddleCall) -> Values:
    """Return the elements of the single output, or None if unknown or more than MAX_ELEMENTS."""
    rule = _ELEMENT_RULES.get(call.type)
    values = rule(call) if rule else None
    return values if values is not None and len(values) <= MAX_ELEMENTS else None


def _shape_elements(call: PaddleCall) -> Values:
    """Return the elements of a shape tensor."""
    return call.inputs["Input"][0].dims if call.has_input("Input") else None


def _constant_elements(call: PaddleCall) -> Values:
    """Return the elements of a constant."""
    shape = call.integers("shape")
    if (
        call.has_input("ShapeTensor")
        or call.has_input("ShapeTensorList")
        or call.has_input("ValueTensor")
        or len(shape) > 1
    ):
        return None
    try:
        number = float(call.text("str_value") or str(call.attrs.get("value", 0.0)))
    except ValueError:
        return None
    count = shape[0] if shape else 1
    return (int(number),) * count if number.is_integer() and 0 <= count <= MAX_ELEMENTS else None


def _attribute_elements(call: PaddleCall) -> Values:
    """Return the elements of an integer list in an attribute."""
    for name in ("int32_values", "int64_values", "values"):
        values = call.attrs.get(name)
        if isinstance(values, tuple) and values and all(isinstance(value, int) for value in values):
            return tuple(values)
    return () if call.integers("shape") == (0,) else None


def _elements_of_x(call: PaddleCall) -> Values:
    """Return the elements of X."""
    return call.values("X")


def _slice_elements(call: PaddleCall) -> Values:
    """Return the elements of a slice."""
    values = call.values("Input")
    tensors = any(call.has_input(f"{side}Tensor{many}") for side in ("Starts", "Ends") for many in ("", "List"))
    if values is None or call.integers("axes") != (0,) or tensors:
        return None
    return values[slice(call.integers("starts")[0], call.integers("ends")[0])]


def _concat_elements(call: PaddleCall) -> Values:
    """Return the elements of a concatenation."""
    joined_values: list[int | None] = []
    for operand in call.inputs.get("X", ()):
        if operand.values is None:
            return None
        joined_values += operand.values
    return tuple(joined_values)


def _scale_elements(call: PaddleCall) -> Values:
    """Return the scaled elements, if scale and bias are integers."""
    values, scale, bias = call.values("X"), call.attrs.get("scale", 1.0), call.attrs.get("bias", 0.0)
    if values is None or call.has_input("ScaleTensor") or not isinstance(scale, float) or not isinstance(bias, float):
        return None
    if not (scale.is_integer() and bias.is_integer()):
        return None
    after = call.attrs.get("bias_after_scale", True)
    return tuple(
        None if value is None else int(value * scale + bias if after else (value + bias) * scale) for value in values
    )


def _pairwise(combine: Callable[[int, int], int | None]) -> Callable[[PaddleCall], Values]:
    """Return a rule that combines two tensors element by element; a tensor of a single element is repeated."""

    def values(call: PaddleCall) -> Values:
        """Return the combined elements, or None."""
        a, b = call.values("X"), call.values("Y")
        if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
            return None
        count = max(len(a), len(b))
        pairs = zip(a * count if len(a) == 1 else a, b * count if len(b) == 1 else b, strict=False)
        return tuple(None if x is None or y is None else combine(x, y) for x, y in pairs)

    return values


def _product_element(call: PaddleCall) -> Values:
    """Return the product of the elements."""
    values = call.values("X")
    if values is None or None in values:
        return None
    result = 1
    for value in values:
        result *= value or 0
    return (result,)


def _gather_elements(call: PaddleCall) -> Values:
    """Return the elements at the given indices."""
    values, index = call.values("X"), call.values("Index")
    if values is None or index is None:
        return None
    return tuple(None if at is None else values[axis_of(at, len(values))] for at in index)


_ELEMENT_RULES: Mapping[str, Callable[[PaddleCall], Values]] = {
    "shape": _shape_elements, "fill_constant": _constant_elements, "assign_value": _attribute_elements,
    "slice": _slice_elements, "concat": _concat_elements, "stack": _concat_elements, "scale": _scale_elements,
    "gather": _gather_elements, "reduce_prod": _product_element,
    **dict.fromkeys(("assign", "cast", "depend", "share_data", "squeeze2", "unsqueeze2", "memcpy"), _elements_of_x),
    "elementwise_add": _pairwise(lambda a, b: a + b), "elementwise_sub": _pairwise(lambda a, b: a - b),
    "elementwise_mul": _pairwise(lambda a, b: a * b),
    "elementwise_floordiv": _pairwise(lambda a, b: a // b if b else None),
}  # fmt: skip
