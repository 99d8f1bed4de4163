"""The tensors that PyTorch's eager kernels give, where tracing tells another type or other strides.

AOTAutograd and `torch.export` run a program on fake tensors. For the operators of `probes.TABLE` the CPU's kernel gives
another type or layout than the fake one: LayerNorm in bf16 with f32 parameters keeps f32 statistics, and tracing tells
bf16. `EagerTensors` takes the kernel's word, and derives anew what a graph computes from such a result.
"""

from __future__ import annotations

import operator
from typing import Any

from sublet.base.extras import require
from sublet.frontends.torch.probes import TABLE, probed
from sublet.frontends.torch.tensors import Extents, fixed, layout_of, torch


class EagerTensors:
    """The tensors of one traced graph as PyTorch gives them eagerly, by node.

    Args:
        extents: what the symbols of the graph stand for.
        device: the device that the program is planned for; "" for the CPU. Only the CPU's kernels are probed.
    """

    def __init__(self, extents: Extents, device: str = "") -> None:
        self._extents, self._device = extents, device
        self._corrected: dict[Any, Any] = {}
        self._mode: Any = None

    def correct(self, node: Any, tensors: Any) -> None:
        """Take tensors for what a node gives, instead of the traced ones."""
        self._corrected[node] = tensors

    def is_corrected(self, node: Any) -> bool:
        """True if PyTorch gives other tensors eagerly than tracing tells."""
        return node in self._corrected

    def of(self, node: Any) -> Any:
        """Return tensors like those that a node gives eagerly: the traced ones, unless the kernels give others."""
        traced = node.meta.get("val")
        if node in self._corrected:
            return self._corrected[node]
        depends = any(each in self._corrected for each in node.all_input_nodes)
        if self._device or not _is_strided(traced) or not (depends or str(node.target) in TABLE):
            return traced
        if node.target is operator.getitem:
            eager = self._corrected[node.args[0]][node.args[1]]
        elif isinstance(node.target, torch()._ops.OpOverload):
            eager = self._run(node, traced)
        else:
            return traced
        if self._types_and_layouts(eager) == self._types_and_layouts(traced):
            return traced
        self.correct(node, eager)
        return eager

    def _run(self, node: Any, traced: Any) -> Any:
        """Return what an operator gives for the arguments that it has eagerly; the traced tensors where it raises, as
        it will when the program runs."""
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()
        given = pytree.tree_map_only(t.fx.Node, self._argument, (tuple(node.args), dict(node.kwargs)))
        try:
            if str(node.target) in TABLE:
                args, kwargs = self._on(given, "meta")
                return probed(node.target, args, kwargs, self._on(traced, "meta"))
            if self._mode is None:
                self._mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()
            with self._mode:
                args, kwargs = self._on(given, "cpu")
                return node.target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return traced

    def _argument(self, node: Any) -> Any:
        found = self.of(node)
        numbers = (torch().SymInt, torch().SymFloat, torch().SymBool)
        return fixed(found, self._extents, node.name) if isinstance(found, numbers) else found

    def _on(self, given: Any, device: str) -> Any:
        """The same structure with new tensors on a device, which lie as the given ones do."""
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()

        def made(each: Any) -> Any:
            layout = layout_of(each, self._extents, "")
            return t.empty_strided(layout.size, layout.stride, dtype=each.dtype, device=device)

        return pytree.tree_map_only(t.Tensor, made, given)

    def _types_and_layouts(self, tensors: Any) -> list[Any]:
        """The types and layouts of an operator's results, to compare them."""
        each = tensors if isinstance(tensors, list | tuple) else (tensors,)
        return [None if one is None else (one.dtype, layout_of(one, self._extents, "").normal) for one in each]


def _is_strided(traced: Any) -> bool:
    """True for a strided tensor, and for results that are strided tensors or None."""
    each = traced if isinstance(traced, list | tuple) else (traced,)
    strided = torch().strided
    return all(one is None or (hasattr(one, "stride") and one.layout == strided) for one in each)
