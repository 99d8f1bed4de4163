"""The `aten` dialect: PyTorch ATen operators by name and overload, `aten.add.Tensor`, with arguments as data.

A tensor argument is a value with a layout. PyTorch views are therefore no nodes: a reader of a view reads the bytes of
the viewed value.
"""

from sublet.ops.aten.call import Argument, Call, Named, Strided, Use, decode, encode
from sublet.ops.aten.collectives import COLLECTIVES, WAIT, collective
from sublet.ops.aten.dialect import AS_STRIDED, DEVICE, PREFIX, aten, other_version
from sublet.ops.aten.joined import JOINED, LOGITS_GRADIENT, joined

__all__ = [
    "AS_STRIDED", "COLLECTIVES", "DEVICE", "JOINED", "LOGITS_GRADIENT", "PREFIX", "WAIT", "Argument", "Call", "Named",
    "Strided", "Use", "aten", "collective", "decode", "encode", "joined", "other_version",
]  # fmt: skip
