"""Tensors of a traced program as strided views of values. Views therefore cost no memory and no node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sublet.base.arrays import NAMES, torch_name
from sublet.base.errors import ModelError
from sublet.base.optional_imports import imported_module, require
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.dialect import StridedLayout, TensorArgument
from sublet.ir.graph import Value

DTYPES_BY_NAME = {
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
"""Element types by PyTorch's names."""


def torch() -> ModuleType:
    """Return the module `torch`. Raises MissingExtraError, with the name of the extra, without PyTorch."""
    module: ModuleType = imported_module("torch") or require("torch", extra="torch")
    return module


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A strided view of a value: the elements of `value` seen through `layout`, as PyTorch's strides."""

    value: Value
    layout: StridedLayout

    @property
    def is_whole(self) -> bool:
        """True if the view is the value as described by the value's spec: all elements in shape and order."""
        spec = self.value.spec
        return isinstance(spec, TensorSpec) and self.layout.size == spec.shape and self.layout.is_contiguous

    @property
    def layout_or_none(self) -> StridedLayout | None:
        """The layout; None for the whole value."""
        return None if self.is_whole else self.layout

    def as_argument(self, position: int) -> TensorArgument:
        """Return the tensor as an argument of a node with the value as input at `position`."""
        return TensorArgument(position, self.layout_or_none)

    @property
    def spec(self) -> TensorSpec:
        """The spec of the value; only values with a TensorSpec are converted."""
        assert isinstance(self.value.spec, TensorSpec)
        return self.value.spec

    def meta_tensor(self) -> Any:
        """Return a tensor on `meta` with the same layout, so PyTorch can compute the layout of a view."""
        t, layout = torch(), self.layout
        base = t.empty((self.spec.size,), dtype=getattr(t, torch_name(self.spec.dtype)), device="meta")
        return base.as_strided(layout.size, layout.stride, layout.offset)


def dtype_of(fake: Any, where: str) -> DType:
    """Return the element type of a PyTorch tensor. Raises ModelError for an unsupported type."""
    name = str(fake.dtype).removeprefix("torch.")
    if name not in DTYPES_BY_NAME:
        raise ModelError(f"{where}: elements of type {name} cannot be planned")
    return DTYPES_BY_NAME[name]


Extents = Mapping[Any, int]
"""Extents of PyTorch's symbols in a conversion."""


def fixed_number(number: Any, extents: Extents, where: str) -> int:
    """Return a number of a traced program as an int. Raises ModelError for a number known only at run time."""
    expression = getattr(getattr(number, "node", None), "expr", None)
    known = number if expression is None else expression.subs(extents)
    if isinstance(known, int) or getattr(known, "is_Integer", False):
        return int(known)
    raise ModelError(f"{where}: the extent {number} depends on the inputs: trace it with fixed extents")


def layout_of(fake: Any, extents: Extents, where: str) -> StridedLayout:
    """Return the layout of a traced tensor. Raises ModelError for an open extent, and for a tensor without strides."""
    if str(fake.layout) != "torch.strided":
        raise ModelError(f"{where}: a tensor of layout {fake.layout} cannot be planned")
    size, stride = (tuple(fixed_number(n, extents, where) for n in numbers) for numbers in (fake.shape, fake.stride()))
    return StridedLayout(size, stride)


def is_dense(tensor: Any) -> bool:
    """True if the elements of a PyTorch tensor fill one contiguous range of bytes, in any order of axes."""
    return StridedLayout(tuple(tensor.shape), tuple(tensor.stride())).is_dense


def spec_and_layout(fake: Any, extents: Extents, where: str) -> tuple[TensorSpec, StridedLayout]:
    """Return the spec and layout of a new tensor.

    The tensor is dense in the order of PyTorch's strides, or row-major if the traced tensor is not dense.
    """
    traced = layout_of(fake, extents, where)
    layout = (traced if traced.is_dense else StridedLayout.contiguous(traced.size)).canonical
    if layout.is_contiguous:
        return TensorSpec(dtype_of(fake, where), layout.size), StridedLayout.contiguous(layout.size)
    return TensorSpec(dtype_of(fake, where), layout.extents_in_memory), layout
