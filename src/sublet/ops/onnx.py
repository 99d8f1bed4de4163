"""The `onnx` dialect: ONNX operators under the names "onnx.Conv" or "onnx.com.microsoft.FusedConv".

The tables of facts hold for every version of an operator: facts depend on specs and literals, never on a version.
Arity and determinism come from the ONNX schemas if the onnx package is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sublet.base.errors import MissingExtraError
from sublet.base.optional_imports import require
from sublet.ops import onnx_inplace, onnx_views
from sublet.ops.op import Op, no_shares

PREFIX = "onnx."
RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        *("RandomUniformLike", "SequenceMap"),
    }
)
"""Impure operators. Dropout is random only in training, and SequenceMap only if its body is: names cannot tell."""

ANY_NUMBER = (1 << 31) - 1
Arity = tuple[int, int]


@lru_cache(maxsize=4096)
def onnx_op(name: str) -> Op:
    """Return the record of the operator `name`; without facts if the operator has no schema."""
    domain, _, op_type = name.removeprefix(PREFIX).rpartition(".")
    key = f"{domain}.{op_type}" if domain else op_type
    arity = _arities().get((domain, op_type))
    is_standard = arity is not None or domain.startswith("com.microsoft") or domain == ""
    return Op(
        name,
        views=onnx_views.VIEWS.get(key, no_shares),
        parts=onnx_views.PARTS.get(key, no_shares),
        inplace=onnx_inplace.INPLACE.get(key, no_shares),
        pure=is_standard and op_type not in RANDOM,
        inputs=arity and arity[0],
        outputs=arity and arity[1],
    )


@lru_cache(maxsize=1)
def _arities() -> Mapping[tuple[str, str], tuple[Arity, Arity]]:
    """Return (min, max) numbers of inputs and outputs over all versions of every operator; empty without onnx.

    The captured values of sub-graphs count as inputs of the operator.
    """
    try:
        defs = require("onnx.defs", extra="onnx")
    except MissingExtraError:
        return {}
    graphs = {defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS}
    arities: dict[tuple[str, str], tuple[Arity, Arity]] = {}
    for schema in defs.get_all_schemas_with_history():
        captures = any(attribute.type in graphs for attribute in schema.attributes.values())
        inputs = (schema.min_input, ANY_NUMBER if captures else schema.max_input)
        outputs = (schema.min_output, schema.max_output)
        before = arities.get((schema.domain, schema.name), (inputs, outputs))
        arities[schema.domain, schema.name] = (
            _union_of_ranges(before[0], inputs),
            _union_of_ranges(before[1], outputs),
        )
    return arities


def _union_of_ranges(a: Arity, b: Arity) -> Arity:
    return min(a[0], b[0]), max(a[1], b[1])
