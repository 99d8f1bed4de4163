"""What a tensor of a traced program is here: elements of a value. So views cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sublet.base.arrays import NAMES, torch_name
from sublet.base.errors import ModelError
from sublet.base.extras import require
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Value
from sublet.ops.aten import Strided, Use

SHORT = {
    "bool": DType.BOOL,
    "int8": DType.I8,
    "int16": DType.I16,
    "int32": DType.I32,
    "int64": DType.I64,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "float16": DType.F16,
    "float32": DType.F32,
    "float64": DType.F64,
    **{name: dtype for dtype, name in NAMES.items()},
}
"""Types of elements by PyTorch's names."""


def torch() -> ModuleType:
    """PyTorch. Raises MissingExtraError, which names the extra, when it is not installed."""
    module: ModuleType = require("torch", extra="torch")
    return module


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements of a value, laid out as PyTorch's strides say."""

    value: Value
    layout: Strided

    @property
    def is_whole(self) -> bool:
        """Whether it is the value as its spec says: all elements, in their shape and order."""
        spec = self.value.spec
        return isinstance(spec, TensorSpec) and self.layout.size == spec.shape and self.layout.is_contiguous

    @property
    def strides(self) -> Strided | None:
        """The layout, None for the whole value."""
        return None if self.is_whole else self.layout

    def use(self, position: int) -> Use:
        """It as an argument of a node that has the value as input at this position."""
        return Use(position, self.strides)

    @property
    def spec(self) -> TensorSpec:
        """That of the value; only what can be planned is converted."""
        assert isinstance(self.value.spec, TensorSpec)
        return self.value.spec

    def on_meta(self) -> Any:
        """A tensor without bytes that lies as this one does, for PyTorch to say what a view of it is."""
        t, layout = torch(), self.layout
        base = t.empty((self.spec.size,), dtype=getattr(t, torch_name(self.spec.dtype)), device="meta")
        return base.as_strided(layout.size, layout.stride, layout.offset)


def dtype_of(fake: Any, where: str) -> DType:
    """The type of the elements of a tensor of PyTorch's. Raises ModelError for one that is none of ours."""
    name = str(fake.dtype).removeprefix("torch.")
    if name not in SHORT:
        raise ModelError(f"{where}: elements of type {name} cannot be planned")
    return SHORT[name]


Extents = Mapping[Any, int]
"""What symbols of PyTorch's, which stand for extents, are in this conversion."""


def fixed(number: Any, extents: Extents, where: str) -> int:
    """A number of a traced program. Raises ModelError for one that only a run knows."""
    expression = getattr(getattr(number, "node", None), "expr", None)
    known = number if expression is None else expression.subs(extents)
    if isinstance(known, int) or getattr(known, "is_Integer", False):
        return int(known)
    raise ModelError(f"{where}: the extent {number} depends on the inputs: trace it with fixed extents")


def layout_of(fake: Any, extents: Extents, where: str) -> Strided:
    """The layout of a traced tensor. Raises ModelError when an extent is open, or it is not strided."""
    if str(fake.layout) != "torch.strided":
        raise ModelError(f"{where}: a tensor of layout {fake.layout} cannot be planned")
    size, stride = (tuple(fixed(n, extents, where) for n in numbers) for numbers in (fake.shape, fake.stride()))
    return Strided(size, stride)


def is_dense(tensor: Any) -> bool:
    """Whether the elements of PyTorch's tensor are one run of bytes, which can be used where they are."""
    return Strided(tuple(tensor.shape), tuple(tensor.stride())).is_dense


def spec_and_layout(fake: Any, extents: Extents, where: str) -> tuple[TensorSpec, Strided]:
    """How a new tensor is kept: dense, its axes in memory in the order of PyTorch's strides, or row-major."""
    found = layout_of(fake, extents, where)
    layout = (found if found.is_dense else Strided.contiguous(found.size)).normal
    if layout.is_contiguous:
        return TensorSpec(dtype_of(fake, where), layout.size), Strided.contiguous(layout.size)
    return TensorSpec(dtype_of(fake, where), layout.in_memory), layout
