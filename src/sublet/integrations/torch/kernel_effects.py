"""Effects of kernels that fake tensors do not show: workspaces of libraries, and the contents of small tensors.

The rules of workspaces were found by measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sublet.base.optional_imports import require
from sublet.integrations.torch.reader.exported_program import CPU
from sublet.integrations.torch.reader.traced_tensor import torch

WIDE_WINDOW, COLOURS = 14, 3
"""Columns of a window too wide for oneDNN's compiled kernels; channels of an image read in place without AVX-512."""

HOPPER = 9
"""The major compute capability of GPUs for which PyTorch gives cuBLAS a larger workspace."""

PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default", "aten.addmv.default")
"""Operators computed by cuBLAS on a GPU."""

BLOCK = 16
"""oneDNN pads the channels of a blocked weight to a multiple of this number."""

PAGE_BYTES = 4096
"""oneDNN begins each part of an LSTM's workspace at a multiple of this number."""


def with_kept_workspace(name: str, args: Sequence[Any], results: Any) -> Any:
    """Return the results of an operator; the workspace of an LSTM's layer, empty on fake tensors, has its real size."""
    if name != "aten.mkldnn_rnn_layer.default" or not args[-1] or args[0].dtype is not torch().float32:
        return results
    steps, batch, inner = args[0].shape
    gates, outer = args[1].shape[0], args[10]
    wide = _row_length(max(inner, outer))
    parts = [steps * _row_length(gates), steps * _row_length(outer)]
    parts += [2 * (steps + 1) * each for each in (wide, wide, wide, outer, outer)]
    nbytes = [batch * each * args[0].element_size() for each in parts]
    return (*results[:3], results[3].new_empty(sum(each + -each % PAGE_BYTES for each in nbytes)))


def _row_length(count: int) -> int:
    """Return the elements of a row of `count` elements in the workspace of an LSTM's layer."""
    padded = count + -count % 16
    return padded if padded % 256 else padded + 16


def workspace_bytes(name: str, args: Sequence[Any], results: Any) -> int:
    """Return the bytes that a CPU kernel allocates beyond its results, found by measurement; 0 for other kernels.

    oneDNN computes a convolution on blocked copies of images and weights, but takes images with channels last as they
    are. The gradient of a batch norm needs a second tensor of the size of the image.
    """
    if name.startswith("aten.mkldnn_rnn_layer") and args[0].dtype is torch().float32:
        return _lstm_copies(args, name == "aten.mkldnn_rnn_layer_backward.default")
    if name == "aten.native_batch_norm_backward.default" and args[0].device.type == CPU:
        return _bytes_of(args[1])
    if name == "aten.convolution.default" and _is_blocked(args[0], args[1]):
        is_copied = args[0].shape[1] >= channel_block() or prod(args[1].shape[2:]) == 1
        image = _in_blocks(args[0]) if is_copied else 0
        weight = _weight_in_blocks(args[1], args[-1]) if is_copied else _bytes_of(args[1])
        in_blocks, result = _in_blocks(results), _bytes_of(results)
        return in_blocks - result + max(image + weight, result)
    if name == "aten.convolution.default" and _has_channels_last(args[0]):
        weight = _bytes_of(args[1])
        return weight + weight // 8 + (0 if _has_channels_last(args[1]) else weight)
    if name == "aten.convolution_backward.default" and args[-2] > 1 and not args[1].is_contiguous():
        weight = args[2]
        padded = [_padded_channels(each) for each in (weight.shape[0] // args[-2], weight.shape[1])]
        return args[-2] * prod((*padded, *weight.shape[2:])) * weight.element_size() if weight.device.type == CPU else 0
    if name == "aten.convolution_backward.default" and _is_blocked(args[1], args[2]):
        copied = 0 if args[0].is_contiguous() else _bytes_of(args[0])
        made = sum(_bytes_of(each) for each in results if each is not None)
        peak = _peak_of_blocked_gradients(args[0], args[1], args[2], args[4], args[-2], args[-1])
        return max(0, copied + peak - made)
    if name == "aten.convolution_backward.default" and _has_channels_last(args[1]):
        return _copies_of_channels_last(args[0], args[1], args[2])
    return 0


def _peak_of_blocked_gradients(
    gradient: Any, image: Any, weight: Any, strides: Sequence[int], groups: int, wanted: Sequence[bool]
) -> int:
    """Return the bytes of results and copies in the gradients of a convolution on blocked copies of the operands.

    The gradient by the image comes first, and stays beside the gradient by the weight. Windows of `WIDE_WINDOW` columns
    or more are products with column matrices: each thread has a matrix, and four copies of the weight.
    """
    nbytes, padded = _in_blocks(gradient), _in_blocks(image)
    in_blocks = _weight_in_blocks(weight, groups)
    peaks, kept = [0], 0
    if wanted[0]:
        kept = _bytes_of(image)
        moved = (3 if groups == 1 else 2) * kept if max(strides) > 1 else 0
        peaks += [nbytes + padded + in_blocks, padded + kept, moved]
    if wanted[1] and weight.shape[-1] >= WIDE_WINDOW:
        columns = prod(weight.shape[1:]) * prod(gradient.shape[2:]) * weight.element_size()
        threads = min(torch().get_num_threads(), max(1, gradient.shape[0]))
        peaks.append(kept + _bytes_of(weight) + threads * (columns + 4 * _bytes_of(weight)))
    elif wanted[1]:
        copied = 0 if _is_read_in_place(image, weight) else padded
        peaks += [kept + copied + nbytes + in_blocks, kept + 2 * _bytes_of(weight)]
    return int(max(peaks))


def _in_blocks(tensor: Any) -> int:
    """Return the bytes of a tensor in the smallest blocks of oneDNN along the second axis."""
    channels = max(1, int(tensor.shape[1]))
    return _bytes_of(tensor) // channels * (channels + -channels % channel_block())


def _weight_in_blocks(weight: Any, groups: int) -> int:
    """Return the bytes of a weight in blocks along the first two axes; in groups, the weight has no blocks."""
    block = channel_block()
    outer, inner = ((int(n) + -int(n) % block if groups == 1 else int(n)) for n in weight.shape[:2])
    return int(outer * inner * prod(weight.shape[2:]) * weight.element_size())


def _is_read_in_place(image: Any, weight: Any) -> bool:
    """True if the gradient of a convolution's weight takes the image without a copy in blocks."""
    if channel_block() == BLOCK:
        return bool(image.shape[1] <= BLOCK // 2 and prod(weight.shape[2:]) > 1)
    return bool(image.shape[1] == COLOURS)


def channel_block() -> int:
    """Return the channels of a block in oneDNN's layouts: `BLOCK` with AVX-512, else half as many.

    oneDNN copies images into blocks, but reads images with fewer channels in place, if the window has several elements.
    """
    return BLOCK if torch().backends.cpu.get_cpu_capability().startswith("AVX512") else BLOCK // 2


def _copies_of_channels_last(gradient: Any, image: Any, weight: Any) -> int:
    """Return the bytes that the gradients of a convolution need, with channels last.

    Beside copies of the weight, each thread may need a copy of an image, and a gradient of the weight in blocks. Of 52
    measured convolutions, three tiny ones needed more, by at most 21 KB.
    """
    threads, nbytes = torch().get_num_threads(), _bytes_of(weight)
    copied = 0 if _has_channels_last(weight) else nbytes
    in_blocks = nbytes * BLOCK // weight.shape[1] if 0 < weight.shape[1] < BLOCK else 0
    scratch = threads * max(_bytes_of(each) // max(1, each.shape[0]) for each in (gradient, image))
    return int(copied + max(2 * nbytes, threads * in_blocks) + scratch + scratch // BLOCK)


def _lstm_copies(args: Sequence[Any], is_backward: bool) -> int:
    """Return the bytes of the reordered weights and the gates, which a layer of an LSTM needs while it runs."""
    (steps, batch, inner), (gates, outer) = args[0].shape, args[2].shape
    copies = (inner + outer + steps * batch) * _row_length(gates)
    copies += gates * (_row_length(inner) + _row_length(outer)) if is_backward else 0
    return int(copies * args[0].element_size())


def _padded_channels(count: int) -> int:
    """Return the channels of a group, as padded in the blocked gradient of a grouped convolution's weight."""
    return 16 if count <= 16 else count + -count % 64


def _is_blocked(image: Any, weight: Any) -> bool:
    """True if oneDNN computes a convolution on blocked copies: f32 on the CPU, channels first, groups of channels."""
    plain = image.device.type == CPU and image.dtype is torch().float32 and image.is_contiguous()
    return bool(plain and weight.shape[1] * max(1, prod(weight.shape[2:])) > 1)


def _has_channels_last(image: Any) -> bool:
    """True for a tensor of f32 on the CPU with channels last in memory."""
    in_place = image.device.type == CPU and image.dtype is torch().float32 and image.dim() == 4
    return bool(in_place and image.is_contiguous(memory_format=torch().channels_last))


def _bytes_of(tensor: Any) -> int:
    """Return the bytes of the elements of a tensor."""
    return int(tensor.numel() * tensor.element_size())


def cublas_workspace_bytes() -> int:
    """Return the bytes that PyTorch keeps allocated for cuBLAS in each thread with matrix products.

    The bytes are PyTorch's defaults, measured on an H100 only; the variable CUBLAS_WORKSPACE_CONFIG changes them.
    """
    major, _ = torch().cuda.get_device_capability()
    return 32 << 20 if major >= HOPPER else (2 * 4096 + 8 * 16) << 10


MAX_KNOWN_ELEMENTS = 1 << 20
"""Tensors with more elements have no known content. The limit bounds the memory and the time of an estimate."""

UNDEFINED = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
"""Names of operators of ATen whose results have no defined content. Other namespaces may have no kernel on the CPU."""


class KnownContents:
    """The contents of small tensors computed from no argument of the step, such as positions made by `arange`.

    Models ask for such contents: a decoder of transformers takes another attention if positions are not consecutive.
    """

    def __init__(self) -> None:
        self._known: Any = require("torch.utils.weak", extra="torch").WeakTensorKeyDictionary()

    def number(self, tensor: Any) -> Any:
        """Return the only element of a tensor; for an unknown content no, or 1."""
        if tensor not in self._known:
            return False if tensor.dtype is torch().bool else 1
        with _no_dispatch():
            return self._known[tensor].item()

    def compute(self, operator: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Compute the contents of the results of an operator, if the contents of all its tensors are known."""
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        given, made = (
            [each for each in pytree.tree_leaves(tree) if isinstance(each, t.Tensor)]
            for tree in ((args, kwargs), results)
        )
        is_random = t.Tag.nondeterministic_seeded in operator.tags
        is_defined = operator.namespace == "aten" and operator._schema.name.partition("::")[2] not in UNDEFINED
        is_small = all(each.numel() <= MAX_KNOWN_ELEMENTS for each in made)
        if not (is_small and is_defined and not is_random and all(each in self._known for each in given)):
            if operator._schema.is_mutable:
                self._forget(given)
            return
        on_cpu = {**kwargs, "device": CPU} if kwargs.get("device") is not None else kwargs
        with _no_dispatch():
            args, on_cpu = pytree.tree_map_only(t.Tensor, self._known.__getitem__, (args, on_cpu))
            try:
                contents = operator(*args, **on_cpu)
            except Exception:  # a kernel for GPUs only: the contents stay unknown
                return self._forget(given)
        for tensor, content in zip(made, filter(t.is_tensor, pytree.tree_leaves(contents)), strict=True):
            self._known[tensor] = content

    def _forget(self, tensors: Sequence[Any]) -> None:
        """Forget the contents of tensors that may have changed, and of all tensors with the same storage."""
        storages = {each.untyped_storage()._cdata for each in tensors}
        for each in [each for each in self._known if each.untyped_storage()._cdata in storages]:
            del self._known[each]


def _no_dispatch() -> Any:
    """Return a context without fake tensors and dispatch modes."""
    return require("torch.utils._mode_utils", extra="torch").no_dispatch()
