"""Operators of ATen's that give tensors of PyTorch's own, called for a piece of their tensors at a time.

What PyTorch allocates during a call is then a piece, and not the result. Only operators whose results along an axis
depend on nothing else along it are cut there: samples of a batch, heads of an attention, elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.runtime.backends.torch.kernel import Tensor, put, torch

PIECE = 1 << 20
"""Bytes of the results of a piece, where they can be cut as small."""

Cut = tuple[slice, ...]


@dataclass(frozen=True)
class Pieced:
    """Which arguments are cut, by position or name, and along how many of the first axes."""

    arguments: tuple[int | str, ...]
    axes: int = 1


PIECED: Mapping[str, Pieced] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": Pieced((0, 1, 2, "attn_mask"), 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": Pieced((0, 1, 2, 3, 4, 5, "attn_mask"), 2),
    "_adaptive_avg_pool2d.default": Pieced((0,), 2),
    "_adaptive_avg_pool2d_backward.default": Pieced((0, 1), 2),
    "max_pool2d_with_indices.default": Pieced((0,), 2),
    "max_pool2d_with_indices_backward.default": Pieced((0, 1, 7), 2),
    "upsample_bicubic2d.default": Pieced((0,), 2),
    "convolution.default": Pieced((0,)),
    "hardswish_backward.default": Pieced((0, 1)),
    "native_dropout_backward.default": Pieced((0, 1)),
}
"""By the operator's name. Those that PyTorch calls pointwise are cut along their first axis without being listed."""


@dataclass(frozen=True)
class Pieces:
    """Calls that give tensors, each with the places that these are copied to."""

    calls: Sequence[tuple[Callable[[], Any], Sequence[Tensor]]]

    def __call__(self) -> None:
        for call, places in self.calls:
            found = call()
            for place, made in zip(places, found if isinstance(found, tuple | list) else (found,), strict=True):
                put(place, made)

    @property
    def nbytes(self) -> int:
        """Of the tensors that the largest call gives."""
        return max((sum(place.nbytes for place in places) for _, places in self.calls), default=0)


def is_faster_in_pieces(name: str, args: Sequence[Any]) -> bool:
    """Whether an operator that writes where it is told takes less time piece by piece, each in another layout.

    Maxima with their places take ATen a third of the time where channels lie last.
    """
    return name == "max_pool2d_with_indices.default" and args[0].dim() == 4 and args[0].is_contiguous()


def _channels_last(function: Any) -> Any:
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(x.contiguous(memory_format=torch().channels_last), *args, **kwargs)

    return call


def pieces_of(
    name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Tensor]
) -> Pieces | None:
    """A call that computes the results piece by piece; None for an operator that is not cut."""
    given = [each for each in results if each is not None]
    how = PIECED.get(name) or _by_element(function, args, given)
    if name == "convolution_backward.default":
        return _convolution_gradient(function, args, results)
    if how is None or len(given) != len(results) or not given:
        return None
    if is_faster_in_pieces(name, args):
        function = _channels_last(function)
    calls = [
        (
            partial(function, *_cut_args(args, how, cut), **_cut_kwargs(args[0].dim(), kwargs, how, cut)),
            [_part(result, cut) for result in given],
        )
        for cut in _cuts(given, how.axes if args[0].dim() == 4 else 1)  # an image may come without its batch
    ]
    return Pieces(calls)


def _by_element(function: Any, args: Sequence[Any], results: Sequence[Tensor]) -> Pieced | None:
    """Of an operator that is element by element and draws nothing: all tensors of the result's rank are cut."""
    t = torch()
    if t.Tag.pointwise not in function.tags or t.Tag.nondeterministic_seeded in function.tags or len(results) != 1:
        return None
    rank = results[0].dim()
    if not rank:
        return None
    return Pieced(tuple(i for i, each in enumerate(args) if isinstance(each, t.Tensor) and each.dim() == rank))


def _cuts(results: Sequence[Tensor], axes: int) -> Iterator[Cut]:
    """Slices of the first axes, each of some rows of the first, or of one and some of the second."""
    extents = [int(extent) for extent in results[0].shape[:axes]]
    nbytes = sum(each.nbytes for each in results)
    count = extents[0] if extents else 1
    if not count or nbytes <= PIECE:
        yield ()
    elif axes > 1 and len(extents) > 1 and nbytes // count > PIECE and extents[1] > 1:
        step = max(1, PIECE * count * extents[1] // nbytes)
        for row in range(count):
            for begin in range(0, extents[1], step):
                yield slice(row, row + 1), slice(begin, begin + step)
    else:
        step = max(1, PIECE * count // nbytes)
        for begin in range(0, count, step):
            yield (slice(begin, begin + step),)


def _part(tensor: Any, cut: Cut) -> Any:
    """The piece of a tensor; all of it along axes where it has one element for all."""
    if not hasattr(tensor, "dim"):
        return tensor
    for axis, each in enumerate(cut):
        if axis < tensor.dim() and tensor.shape[axis] > 1:
            tensor = tensor[(slice(None),) * axis + (each,)]
    return tensor


def _cut_args(args: Sequence[Any], how: Pieced, cut: Cut) -> list[Any]:
    return [_part(each, cut) if i in how.arguments else each for i, each in enumerate(args)]


def _cut_kwargs(rank: int, kwargs: Mapping[str, Any], how: Pieced, cut: Cut) -> dict[str, Any]:
    """A mask, which may lack the first axes, is the same for all of these."""
    listed = {name: each for name, each in kwargs.items() if name in how.arguments and each is not None}
    return {**kwargs, **{name: _part(each[(None,) * (rank - each.dim())], cut) for name, each in listed.items()}}


def _convolution_gradient(function: Any, args: Sequence[Any], results: Sequence[Tensor]) -> Pieces:
    """By the input sample by sample; by weight and bias at once, which are small."""
    dy, x, *rest, _ = args
    calls: list[tuple[Callable[[], Any], Sequence[Tensor]]] = []
    if results[0] is not None:
        for cut in _cuts([results[0]], 1):
            part = partial(function, _part(dy, cut), _part(x, cut), *rest, [True, False, False])
            calls.append((partial(_chosen, part, (0,)), [_part(results[0], cut)]))
    others = [i for i in (1, 2) if results[i] is not None]
    if others:
        whole = partial(function, dy, x, *rest, [False, 1 in others, 2 in others])
        calls.append((partial(_chosen, whole, others), [results[i] for i in others]))
    return Pieces(calls)


def _chosen(call: Callable[[], Any], positions: Sequence[int]) -> Sequence[Tensor]:
    """What a call gives at these positions: PyTorch may compute more than it was asked for."""
    found = call()
    return [found[i] for i in positions]
