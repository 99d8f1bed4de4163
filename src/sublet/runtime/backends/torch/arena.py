"""The memory of a plan on a device: the arena is one tensor of PyTorch's, and each value a tensor over its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph
from sublet.ops.aten import Strided
from sublet.plan import MemoryPlan, Region
from sublet.runtime.backends.torch.kernel import Tensor, torch
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Memory


class DeviceMemory(Memory):
    """Allocates the arena of a plan on a device; weights are used where they are.

    Tensors over it are no views of PyTorch's: each has a version of its own, so that one which autograd keeps is not
    taken for changed when another one is written.
    """

    def __init__(self, graph: Graph, plan: MemoryPlan, device: str) -> None:
        super().__init__(graph, plan)
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    def raw(self, storage: str) -> Any:
        """The bytes of a storage, a tensor; allocated when they are first asked for, unless they were used before."""
        if storage not in self._tensors:
            with torch().inference_mode(False):
                made = torch().empty(self.storages[storage].nbytes, dtype=torch().uint8, device=self.device)
            self._tensors[storage] = made
        return self._tensors[storage]

    def use(self, storage: str, tensor: Tensor) -> None:
        """Let a storage be the bytes of a tensor whose elements lie in a row, in whatever order of axes."""
        with torch().inference_mode(False), torch().no_grad():
            elements = Strided.contiguous((tensor.numel(),), tensor.storage_offset())
            whole = _over(tensor, tensor.dtype, elements)
            self._tensors[storage] = whole.view(torch().uint8)

    def array(self, region: Region | None, spec: TensorSpec) -> Array:
        """The tensor of a value in a region, None for a value without bytes."""
        found: Array = self.tensor(region, spec, Strided.contiguous(spec.shape))
        return found

    def tensor(self, region: Region | None, spec: TensorSpec, layout: Strided) -> Tensor:
        """Elements of a value as a tensor of PyTorch's."""
        dtype = getattr(torch(), torch_name(spec.dtype))
        with torch().inference_mode(False):
            if region is None:
                return torch().empty_strided(layout.size, layout.stride, dtype=dtype, device=self.device)
            raw = self.raw(region.storage)
            begin = (raw.storage_offset() + region.offset) // dtype.itemsize
            return _over(raw, dtype, replace(layout, offset=begin + layout.offset))


def _over(tensor: Tensor, dtype: Any, layout: Strided) -> Tensor:
    """A tensor over the memory of another one; the offset is counted from the beginning of all that memory."""
    made = torch().empty(0, dtype=dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), layout.offset, layout.size, layout.stride)
