"""The `aten` dialect: PyTorch ATen operators by name and overload, `aten.add.Tensor`, with arguments as data.

A tensor argument is a value with a layout. PyTorch views are therefore no nodes: a reader of a view reads the bytes of
the viewed value.
"""

from sublet.ops.aten.collectives import COLLECTIVES, WAIT, collective_op
from sublet.ops.aten.dialect import AS_STRIDED, DEVICE, PREFIX, aten_op, version_mismatch
from sublet.ops.aten.fused_ops import FUSED_PREFIX, LOGITS_GRADIENT, fused_op
from sublet.ops.aten.operator_call import (
    Argument,
    NamedConstant,
    OperatorCall,
    StridedLayout,
    TensorArgument,
    decode,
    encode,
)

__all__ = [
    "AS_STRIDED",
    "COLLECTIVES",
    "DEVICE",
    "FUSED_PREFIX",
    "LOGITS_GRADIENT",
    "PREFIX",
    "WAIT",
    "Argument",
    "NamedConstant",
    "OperatorCall",
    "StridedLayout",
    "TensorArgument",
    "aten_op",
    "collective_op",
    "decode",
    "encode",
    "fused_op",
    "version_mismatch",
]  # fmt: skip
