"""Tensors as returned by PyTorch's eager kernels, for operators traced with another type or other strides.

AOTAutograd and `torch.export` run a program on fake tensors. For the operators of `probes.PROBED_OPERATORS`, the CPU
kernel returns another type or layout than the trace. Example: LayerNorm in bf16 with f32 parameters keeps f32
statistics, but the trace has bf16. `EagerTensors` uses the kernel's result, and derives all dependent tensors again.
"""

from __future__ import annotations

import operator
from typing import Any

from sublet.base.optional_imports import require
from sublet.frontends.torch.kernel_probes import PROBED_OPERATORS, probe_results
from sublet.frontends.torch.traced_tensor import Extents, fixed_number, layout_of, torch


class EagerTensors:
    """The eager tensors of one traced graph, by node.

    Args:
        extents: extents of the graph's symbols.
        device: the device of the program; "" for the CPU. Only CPU kernels are probed.
    """

    def __init__(self, extents: Extents, device: str = "") -> None:
        self._extents, self._device = extents, device
        self._corrected: dict[Any, Any] = {}
        self._mode: Any = None

    def set_eager(self, node: Any, tensors: Any) -> None:
        """Replace the traced tensors of a node."""
        self._corrected[node] = tensors

    def is_corrected(self, node: Any) -> bool:
        """True if the eager tensors of a node differ from the traced tensors."""
        return node in self._corrected

    def tensors_of(self, node: Any) -> Any:
        """Return tensors like the eager results of a node: the traced tensors, unless the kernels differ."""
        traced = node.meta.get("val")
        if node in self._corrected:
            return self._corrected[node]
        depends = any(each in self._corrected for each in node.all_input_nodes)
        if self._device or not _is_strided(traced) or not (depends or str(node.target) in PROBED_OPERATORS):
            return traced
        if node.target is operator.getitem:
            eager = self._corrected[node.args[0]][node.args[1]]
        elif isinstance(node.target, torch()._ops.OpOverload):
            eager = self._run_operator(node, traced)
        else:
            return traced
        if self._types_and_layouts(eager) == self._types_and_layouts(traced):
            return traced
        self.set_eager(node, eager)
        return eager

    def _run_operator(self, node: Any, traced: Any) -> Any:
        """Return an operator's results for the eager arguments; the traced tensors if the operator raises.

        An operator raising here will raise again in the run of the program, so the error is not lost.
        """
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()
        given = pytree.tree_map_only(t.fx.Node, self._eager_argument, (tuple(node.args), dict(node.kwargs)))
        try:
            if str(node.target) in PROBED_OPERATORS:
                args, kwargs = self._on_device(given, "meta")
                return probe_results(node.target, args, kwargs, self._on_device(traced, "meta"))
            if self._mode is None:
                self._mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()
            with self._mode:
                args, kwargs = self._on_device(given, "cpu")
                return node.target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return traced

    def _eager_argument(self, node: Any) -> Any:
        """Return the eager tensor of an argument node, with symbols replaced by extents."""
        eager = self.tensors_of(node)
        numbers = (torch().SymInt, torch().SymFloat, torch().SymBool)
        return fixed_number(eager, self._extents, node.name) if isinstance(eager, numbers) else eager

    def _on_device(self, given: Any, device: str) -> Any:
        """Return the same structure with new tensors on a device, in the layouts of the given tensors."""
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()

        def empty_like(each: Any) -> Any:
            layout = layout_of(each, self._extents, "")
            return t.empty_strided(layout.size, layout.stride, dtype=each.dtype, device=device)

        return pytree.tree_map_only(t.Tensor, empty_like, given)

    def _types_and_layouts(self, tensors: Any) -> list[Any]:
        """Return the types and layouts of an operator's results, for comparison."""
        each = tensors if isinstance(tensors, list | tuple) else (tensors,)
        return [None if one is None else (one.dtype, layout_of(one, self._extents, "").canonical) for one in each]


def _is_strided(traced: Any) -> bool:
    """True for a strided tensor, and for a sequence of strided tensors and None."""
    each = traced if isinstance(traced, list | tuple) else (traced,)
    strided = torch().strided
    return all(one is None or (hasattr(one, "stride") and one.layout == strided) for one in each)
