"""The `onnx` dialect: ONNX operators as they are, "onnx.Conv" or "onnx.com.microsoft.FusedConv".

Facts come from the tables here and hold for every version of an operator: they are read off specs
and literals, never off a version. Arity and determinism come from the ONNX schemas when the onnx
package is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sublet.base.errors import MissingExtraError
from sublet.base.extras import require
from sublet.ops import onnx_inplace, onnx_views
from sublet.ops.op import Op, none

PREFIX = "onnx."
RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        *("RandomUniformLike", "SequenceMap"),
    }
)
"""Not pure. Dropout is, but for training, and SequenceMap, but for what it maps: the names do not tell."""

ANY_NUMBER = (1 << 31) - 1
Arity = tuple[int, int]


@lru_cache(maxsize=4096)
def onnx_op(name: str) -> Op:
    """The record of the operator `name`; one without a schema gets a record without facts."""
    domain, _, op_type = name.removeprefix(PREFIX).rpartition(".")
    key = f"{domain}.{op_type}" if domain else op_type
    arity = _arities().get((domain, op_type))
    known = arity is not None or domain.startswith("com.microsoft") or domain == ""
    return Op(
        name,
        views=onnx_views.VIEWS.get(key, none),
        parts=onnx_views.PARTS.get(key, none),
        inplace=onnx_inplace.INPLACE.get(key, none),
        pure=known and op_type not in RANDOM,
        inputs=arity and arity[0],
        outputs=arity and arity[1],
    )


@lru_cache(maxsize=1)
def _arities() -> Mapping[tuple[str, str], tuple[Arity, Arity]]:
    """Fewest and most inputs and outputs over all versions of every operator; empty without onnx.

    An operator with sub-graphs takes what they capture as inputs too.
    """
    try:
        defs = require("onnx.defs", extra="onnx")
    except MissingExtraError:
        return {}
    graphs = {defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS}
    found: dict[tuple[str, str], tuple[Arity, Arity]] = {}
    for schema in defs.get_all_schemas_with_history():
        captures = any(attribute.type in graphs for attribute in schema.attributes.values())
        inputs = (schema.min_input, ANY_NUMBER if captures else schema.max_input)
        outputs = (schema.min_output, schema.max_output)
        before = found.get((schema.domain, schema.name), (inputs, outputs))
        found[schema.domain, schema.name] = (_span(before[0], inputs), _span(before[1], outputs))
    return found


def _span(a: Arity, b: Arity) -> Arity:
    return min(a[0], b[0]), max(a[1], b[1])
