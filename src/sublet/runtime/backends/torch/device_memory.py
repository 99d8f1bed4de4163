"""Memory of a plan on a device: the arena is a PyTorch tensor, and values are tensors over the bytes of the arena."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph
from sublet.ops.aten import StridedLayout
from sublet.plan import MemoryPlan, Region
from sublet.runtime.backends.torch.kernel import Tensor, torch
from sublet.runtime.kernel import Array
from sublet.runtime.memory import ExecutableMemory


class DeviceMemory(ExecutableMemory):
    """Memory allocating the arena of a plan on a device; weights stay at their addresses.

    A tensor over the arena is no PyTorch view: each tensor has a separate version counter. A write to a value
    therefore does not invalidate overlapping tensors saved by autograd.
    """

    def __init__(self, graph: Graph, plan: MemoryPlan, device: str) -> None:
        super().__init__(graph, plan)
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    def raw(self, storage: str) -> Any:
        """Return the bytes of a storage as a tensor.

        The first call allocates the storage, unless `bind_storage` has bound a tensor.
        """
        if storage not in self._tensors:
            with torch().inference_mode(False):
                allocated = torch().empty(self.storages[storage].nbytes, dtype=torch().uint8, device=self.device)
            self._tensors[storage] = allocated
        return self._tensors[storage]

    def bind_storage(self, storage: str, tensor: Tensor) -> None:
        """Bind a storage to the bytes of a tensor with contiguous elements, in any order of axes."""
        with torch().inference_mode(False), torch().no_grad():
            elements = StridedLayout.contiguous((tensor.numel(),), tensor.storage_offset())
            flat = _tensor_over_memory(tensor, tensor.dtype, elements)
            self._tensors[storage] = flat.view(torch().uint8)

    def array(self, region: Region | None, spec: TensorSpec) -> Array:
        """Return the tensor of a value in a region; an empty-strided new tensor for a value without bytes."""
        tensor: Array = self.tensor_with_layout(region, spec, StridedLayout.contiguous(spec.shape))
        return tensor

    def tensor_with_layout(self, region: Region | None, spec: TensorSpec, layout: StridedLayout) -> Tensor:
        """Return elements of a value as a PyTorch tensor with size, stride and offset of `layout`, in elements."""
        dtype = getattr(torch(), torch_name(spec.dtype))
        with torch().inference_mode(False):
            if region is None:
                return torch().empty_strided(layout.size, layout.stride, dtype=dtype, device=self.device)
            raw = self.raw(region.storage)
            begin = (raw.storage_offset() + region.offset) // dtype.itemsize
            return _tensor_over_memory(raw, dtype, replace(layout, offset=begin + layout.offset))


def _tensor_over_memory(tensor: Tensor, dtype: Any, layout: StridedLayout) -> Tensor:
    """Return a tensor over the memory of `tensor`; `layout.offset` counts elements from the start of the memory."""
    empty = torch().empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), layout.offset, layout.size, layout.stride)
