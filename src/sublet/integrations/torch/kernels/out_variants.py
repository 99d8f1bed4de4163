"""Out variants for ATen operators without an `out=` overload, as calls writing to the planned place.

Operators moving or filling elements copy or fill in place; gradients adding rows accumulate in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.integrations.torch.kernels.kernel import Tensor, copy_result, torch
from sublet.runtime.kernel import Call

# Chunked calls of ATen operators allocating their results: PyTorch allocates a chunk instead of the whole result.
#
# Only operators with independent results along an axis are chunked along the axis: samples of a batch, heads of an
# attention, elements.

CHUNK_BYTES = 1 << 20
"""Bytes of results per chunk, if the results can be cut finely enough."""

ChunkIndex = tuple[slice, ...]


@dataclass(frozen=True)
class ChunkRule:
    """The chunked arguments of an operator, by position or name, and the number of leading axes to chunk."""

    arguments: tuple[int | str, ...]
    axes: int = 1


CHUNK_RULES: Mapping[str, ChunkRule] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": ChunkRule((0, 1, 2, "attn_mask"), 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": ChunkRule((0, 1, 2, 3, 4, 5, "attn_mask"), 2),
    "_adaptive_avg_pool2d.default": ChunkRule((0,), 2),
    "_adaptive_avg_pool2d_backward.default": ChunkRule((0, 1), 2),
    "max_pool2d_with_indices.default": ChunkRule((0,), 2),
    "max_pool2d_with_indices_backward.default": ChunkRule((0, 1, 7), 2),
    "upsample_bicubic2d.default": ChunkRule((0,), 2),
    "convolution.default": ChunkRule((0,)),
    "hardswish_backward.default": ChunkRule((0, 1)),
    "native_dropout_backward.default": ChunkRule((0, 1)),
}
"""The rule of each operator. Operators tagged pointwise by PyTorch need no entry: the first axis is chunked."""


@dataclass(frozen=True)
class ChunkedCall:
    """Calls returning tensors, each with the places to copy the tensors to.

    `sums` are the places of sums over all calls: every call returns its terms after the tensors to copy, and the places
    of a call end with parts of `sums`, to add the terms to.
    """

    calls: Sequence[tuple[Callable[[], Any], Sequence[Tensor]]]
    sums: Sequence[Tensor] = ()

    def __call__(self) -> None:
        for place in self.sums:
            place.zero_()
        for call, places in self.calls:
            returned = call()
            results = returned if isinstance(returned, tuple | list) else (returned,)
            copied = len(places) - len(self.sums)
            for place, result in zip(places[:copied], results[:copied], strict=True):
                copy_result(place, result)
            for place, result in zip(places[copied:], results[copied:], strict=True):
                place.add_(result)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors returned by the largest call."""
        return max((sum(place.nbytes for place in places) for _, places in self.calls), default=0)


def is_faster_in_chunks(name: str, args: Sequence[Any]) -> bool:
    """True if an operator with an `out=` overload takes less time in chunks, each in a different layout.

    ATen computes maxima with indices in a third of the time for channels-last images.
    """
    return name == "max_pool2d_with_indices.default" and args[0].dim() == 4 and args[0].is_contiguous()


def _in_channels_last(function: Any) -> Any:
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(x.contiguous(memory_format=torch().channels_last), *args, **kwargs)

    return call


def chunked_call(
    name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Tensor]
) -> ChunkedCall | None:
    """Return a call computing the results in chunks; None if no chunk rule applies."""
    given = [each for each in results if each is not None]
    if name in CHUNKERS:
        return CHUNKERS[name](args, results)
    how = CHUNK_RULES.get(name) or _pointwise_rule(function, args, given)
    if how is None or len(given) != len(results) or not given:
        return None
    if is_faster_in_chunks(name, args):
        function = _in_channels_last(function)
    calls = [
        (
            partial(function, *_chunk_args(args, how, cut), **_chunk_kwargs(args[0].dim(), kwargs, how, cut)),
            [_chunk_of(result, cut) for result in given],
        )
        for cut in _chunk_indices(given, how.axes if args[0].dim() == 4 else 1)  # an image may lack the batch axis
    ]
    return ChunkedCall(calls)


def _pointwise_rule(function: Any, args: Sequence[Any], results: Sequence[Tensor]) -> ChunkRule | None:
    """Return a rule chunking all arguments with the rank of the result; None unless the operator is pointwise.

    None also for an operator drawing random numbers, with several results, or with a scalar result.
    """
    t = torch()
    if t.Tag.pointwise not in function.tags or t.Tag.nondeterministic_seeded in function.tags or len(results) != 1:
        return None
    rank = results[0].dim()
    if not rank:
        return None
    return ChunkRule(tuple(i for i, each in enumerate(args) if isinstance(each, t.Tensor) and each.dim() == rank))


def _chunk_indices(results: Sequence[Tensor], axes: int) -> Iterator[ChunkIndex]:
    """Yield slices of the leading axes: some rows of the first axis, or one row and part of the second axis."""
    extents = [int(extent) for extent in results[0].shape[:axes]]
    nbytes = sum(each.nbytes for each in results)
    count = extents[0] if extents else 1
    if not count or nbytes <= CHUNK_BYTES:
        yield ()
    elif axes > 1 and len(extents) > 1 and nbytes // count > CHUNK_BYTES and extents[1] > 1:
        step = max(1, CHUNK_BYTES * count * extents[1] // nbytes)
        for row in range(count):
            for begin in range(0, extents[1], step):
                yield slice(row, row + 1), slice(begin, begin + step)
    else:
        step = max(1, CHUNK_BYTES * count // nbytes)
        for begin in range(0, count, step):
            yield (slice(begin, begin + step),)


def _chunk_of(tensor: Any, cut: ChunkIndex) -> Any:
    """Return the chunk of a tensor; the whole tensor along axes of extent 1."""
    if not hasattr(tensor, "dim"):
        return tensor
    for axis, each in enumerate(cut):
        if axis < tensor.dim() and tensor.shape[axis] > 1:
            tensor = tensor[(slice(None),) * axis + (each,)]
    return tensor


def _chunk_args(args: Sequence[Any], how: ChunkRule, cut: ChunkIndex) -> list[Any]:
    return [_chunk_of(each, cut) if i in how.arguments else each for i, each in enumerate(args)]


def _chunk_kwargs(rank: int, kwargs: Mapping[str, Any], how: ChunkRule, cut: ChunkIndex) -> dict[str, Any]:
    """Return the keyword arguments with chunked masks; a mask may lack leading axes, and is then broadcast."""
    listed = {name: each for name, each in kwargs.items() if name in how.arguments and each is not None}
    return {**kwargs, **{name: _chunk_of(each[(None,) * (rank - each.dim())], cut) for name, each in listed.items()}}


def _chunk_convolution_gradient(args: Sequence[Any], results: Sequence[Tensor]) -> ChunkedCall:
    """Return the chunked gradient of a convolution: by the input in chunks of samples, by weight and bias whole.

    One call computes all gradients if the gradient by the input is one chunk: oneDNN then lays the operands out once.
    """
    function = torch().ops.aten.convolution_backward
    dy, x, *rest, _ = args
    wanted = [i for i in range(3) if results[i] is not None]
    chunks = [] if results[0] is None else list(_chunk_indices([results[0]], 1))
    calls: list[tuple[Callable[[], Any], Sequence[Tensor]]] = []
    if len(chunks) > 1:
        for cut in chunks:
            part = partial(function, _chunk_of(dy, cut), _chunk_of(x, cut), *rest, [True, False, False])
            calls.append((partial(results_at, part, (0,)), [_chunk_of(results[0], cut)]))
        wanted.remove(0)
    if wanted:
        full_gradient = partial(function, dy, x, *rest, [i in wanted for i in range(3)])
        calls.append((partial(results_at, full_gradient, wanted), [results[i] for i in wanted]))
    return ChunkedCall(calls)


def results_at(call: Callable[[], Any], positions: Sequence[int]) -> Sequence[Tensor]:
    """Return the results of `call` at `positions`; PyTorch may compute more results than requested."""
    results = call()
    return [results[i] for i in positions]


def _group_slices(x: Tensor, groups: int) -> list[tuple[slice, slice, slice]]:
    """Return slices of samples, channels and groups: some samples, or some groups of one sample.

    A slice of half a chunk stays in the cache together with its result.
    """
    samples, width = x.shape[0], x.shape[1] // groups
    samples_per_byte = samples / max(1, x.nbytes)
    rows, step = max(1, int(CHUNK_BYTES / 2 * samples_per_byte)), groups
    if rows == 1 and x.is_contiguous():
        step = max(1, int(CHUNK_BYTES / 2 * samples_per_byte * groups))
    return [
        (slice(n, n + rows), slice(g * width, min(g + step, groups) * width), slice(g, min(g + step, groups)))
        for n in range(0, samples, rows)
        for g in range(0, groups, step)
    ]


def chunk_group_norm(args: Sequence[Any], results: Sequence[Tensor]) -> ChunkedCall:
    """Return the chunked call of `native_group_norm`."""
    x, scale, bias, _, _, places, groups, epsilon = args
    wanted, calls = [i for i, each in enumerate(results) if each is not None], []
    for n, c, g in _group_slices(x, groups):
        part = x[n, c]
        affine = [None if each is None else each[c] for each in (scale, bias)]
        given = (part, *affine, *part.shape[:2], places, g.stop - g.start, epsilon)
        function = partial(torch().ops.aten.native_group_norm, *given)
        calls.append((partial(results_at, function, wanted), [results[i][n, g if i else c] for i in wanted]))
    return ChunkedCall(calls)


def chunk_group_norm_gradient(args: Sequence[Any], results: Sequence[Tensor]) -> ChunkedCall:
    """Return the chunked call of `native_group_norm_backward`; by scale and bias, each chunk adds its terms."""
    dy, x, mean, rstd, scale, _, _, places, groups, _ = args
    wanted = [i for i, each in enumerate(results) if each is not None]
    mask, calls = [i in wanted for i in range(3)], []
    for n, c, g in _group_slices(x if dy.is_contiguous() else dy, groups):
        part, weight = x[n, c], None if scale is None else scale[c]
        given = (dy[n, c], part, mean[n, g], rstd[n, g], weight, *part.shape[:2], places, g.stop - g.start, mask)
        function = partial(torch().ops.aten.native_group_norm_backward, *given)
        calls.append((partial(results_at, function, wanted), [results[i][(c,) if i else (n, c)] for i in wanted]))
    return ChunkedCall(calls, [results[i] for i in wanted if i])


CHUNKERS: Mapping[str, Callable[[Sequence[Any], Sequence[Tensor]], ChunkedCall]] = {
    "convolution_backward.default": _chunk_convolution_gradient,
    "native_group_norm.default": chunk_group_norm,
    "native_group_norm_backward.default": chunk_group_norm_gradient,
}
"""(arguments, results) -> the chunked call, of each operator with chunks of its own kind."""

OutVariant = Callable[..., "Sequence[Call] | None"]
"""(result, *arguments of the operator) -> calls writing the result; None for unsupported arguments."""


def _fill_with(value: Any) -> OutVariant:
    """Return an out variant filling the result with `value`."""
    return lambda out, *args, **kwargs: [partial(out.fill_, value)]


def _fill_with_argument(position: int) -> OutVariant:
    """Return an out variant filling the result with the argument at `position`."""
    return lambda out, *args, **kwargs: [partial(out.fill_, args[position])]


def _copy(out: Tensor, like: Tensor, source: Tensor, non_blocking: bool = False) -> Sequence[Call]:
    return [partial(out.copy_, source)]


def _embedding(out: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> Sequence[Call] | None:
    if weight.dim() != 2 or not (indices.is_contiguous() and out.is_contiguous()):
        return None
    return [partial(torch().index_select, weight, 0, indices.view(-1), out=out.view(-1, weight.shape[1]))]


def _embedding_gradient(
    out: Tensor, dy: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool
) -> Sequence[Call] | None:
    """Add each row of `dy` to the row of the table at the index; the row of the padding index stays zero."""
    if by_frequency or not indices.is_contiguous() or not dy.is_contiguous():
        return None
    calls = [partial(out.zero_), partial(out.index_add_, 0, indices.view(-1), dy.view(-1, out.shape[1]))]
    return [*calls, partial(out[padding].zero_)] if padding >= 0 else calls


def _gradient_of_view(view: Callable[..., Tensor]) -> OutVariant:
    """Return an out variant for the gradient of a view: zero outside the view, `dy` inside."""

    def write(out: Tensor, dy: Tensor, sizes: Any, *args: Any) -> Sequence[Call]:
        return [partial(out.zero_), partial(view(out, *args).copy_, dy)]

    return write


def _scatter_into_view(view: Callable[..., Tensor]) -> OutVariant:
    """Return an out variant replacing the elements of a view in a copy of the base tensor."""

    def write(out: Tensor, base: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> Sequence[Call]:
        calls = [partial(view(out, *args, **kwargs).copy_, source)]
        return calls if out.data_ptr() == base.data_ptr() else [partial(out.copy_, base), *calls]

    return write


def _slice(x: Tensor, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    return torch().ops.aten.slice.Tensor(x, axis, start, end, step)


def _select(x: Tensor, axis: int, index: int) -> Tensor:
    return x.select(axis, index)


def _as_strided_view(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    return x.as_strided(size, stride, x.storage_offset() + (offset or 0))


def _pad(out: Tensor, x: Tensor, pads: Sequence[int], value: Any = 0) -> Sequence[Call]:
    """Fill the result and copy the input to the inner region; negative pads crop the input."""
    inner, source = out, x
    for number in range(len(pads) // 2):
        axis, before, after = x.dim() - 1 - number, pads[2 * number], pads[2 * number + 1]
        inner = inner.narrow(axis, max(before, 0), inner.shape[axis] - max(before, 0) - max(after, 0))
        source = source.narrow(axis, max(-before, 0), source.shape[axis] - max(-before, 0) - max(-after, 0))
    return [partial(out.fill_, value), partial(inner.copy_, source)]


def _roll(out: Tensor, x: Tensor, shifts: Sequence[int], axes: Sequence[int] = ()) -> Sequence[Call] | None:
    """Copy the two parts of every axis in exchanged order.

    None for a repeated axis, or if the numbers of axes and shifts differ.
    """
    shifts, axes = ([each] if isinstance(each, int) else list(each) for each in (shifts, axes))
    if len(axes) != len(shifts) or len({axis % x.dim() for axis in axes}) != len(axes):
        return None
    pairs = [(out, x)]
    for shift, axis in zip(shifts, axes, strict=True):
        extent = x.shape[axis]
        back = shift % extent if extent else 0
        pairs = [
            (to.narrow(axis, begin, count), source.narrow(axis, (begin - back) % extent if extent else 0, count))
            for to, source in pairs
            for begin, count in ((0, back), (back, extent - back))
            if count
        ]
    return [partial(to.copy_, source) for to, source in pairs]


def _mean_gradient(out: Tensor, dy: Tensor, x: Tensor) -> Sequence[Call] | None:
    """Spread the gradient of a mean over whole images evenly; None if the mean is over smaller windows."""
    if any(extent != 1 for extent in dy.shape[-2:]):
        return None
    return [partial(torch().div, dy.expand(out.shape), out.shape[-1] * out.shape[-2], out=out)]


def _repeat(out: Tensor, x: Tensor, repeats: Sequence[int]) -> Sequence[Call]:
    """Copy through a view of the output with a separate axis per repetition."""
    shape = (1,) * (len(repeats) - x.dim()) + tuple(x.shape)
    both = [extent for pair in zip(repeats, shape, strict=True) for extent in pair]
    inner = x.view([extent for each in shape for extent in (1, each)]) if x.is_contiguous() else None
    if inner is None or not out.is_contiguous():
        return [partial(_repeat_into, out, x, repeats)]
    return [partial(out.view(both).copy_, inner.expand(both))]


def _index(out: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Sequence[Call]:
    return [partial(torch().ops.aten.index.Tensor_out, x, indices, out=out)]


def _index_put(
    out: Tensor, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Sequence[Call]:
    write = partial(torch().ops.aten.index_put_.default, out, indices, values, accumulate)
    return [write] if out.data_ptr() == x.data_ptr() else [partial(out.copy_, x), write]


def _bernoulli(out: Tensor, x: Tensor, share: float, generator: Any = None) -> Sequence[Call] | None:
    """Draw into a row-major result; None for another order, in which other numbers would be drawn."""
    return [partial(out.bernoulli_, share, generator=generator)] if out.is_contiguous() else None


def _repeat_into(out: Tensor, x: Tensor, repeats: Sequence[int]) -> None:
    out.copy_(x.repeat(repeats))


OUT_VARIANTS: Mapping[str, OutVariant] = {
    "empty.memory_format": lambda out, *args, **kwargs: [],
    "empty_like.default": lambda out, *args, **kwargs: [],
    "empty_strided.default": lambda out, *args, **kwargs: [],
    "new_empty.default": lambda out, *args, **kwargs: [],
    "new_empty_strided.default": lambda out, *args, **kwargs: [],
    "new_zeros.default": _fill_with(0),
    "zeros_like.default": _fill_with(0),
    "new_ones.default": _fill_with(1),
    "ones_like.default": _fill_with(1),
    "full.default": _fill_with_argument(1),
    "full_like.default": _fill_with_argument(1),
    "new_full.default": _fill_with_argument(2),
    "scalar_tensor.default": _fill_with_argument(0),
    "copy.default": _copy,
    "embedding.default": _embedding,
    "embedding_dense_backward.default": _embedding_gradient,
    "slice_backward.default": _gradient_of_view(_slice),
    "select_backward.default": _gradient_of_view(_select),
    "slice_scatter.default": _scatter_into_view(_slice),
    "select_scatter.default": _scatter_into_view(_select),
    "as_strided_scatter.default": _scatter_into_view(_as_strided_view),
    "constant_pad_nd.default": _pad,
    "roll.default": _roll,
    "_adaptive_avg_pool2d_backward.default": _mean_gradient,
    "repeat.default": _repeat,
    "_unsafe_index.Tensor": _index,
    "_unsafe_index_put.default": _index_put,
    "index_put.default": _index_put,
    "bernoulli.p": _bernoulli,
}
"""The out variant of each operator, with a single result. Only `bernoulli` draws random numbers: the same ones."""
