"""The memory of tensors computed at once: blocks of a pool, returned to the pool by reference counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from sublet.base.arrays import array_over
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ops.nn.rules import FLOATS
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Raw, aligned_bytes

BLOCK_ALIGNMENT = 64
"""Alignment of the size and the address of a block, in bytes: a cache line."""

KEPT_BYTES = 16 << 20
"""Minimum limit of a pool's free bytes. The limit is the larger of KEPT_BYTES and the peak of the bytes in use: a
training step finds all its blocks again, and inputs of changing lengths do not accumulate."""

MAX_VIEWS_PER_BLOCK = 16
"""Maximum number of cached views of a block, one for each kind. Beyond, the cache is cleared."""


class TensorKind:
    """A tensor spec, one object for each spec of a graph: kinds are compared by identity."""

    __slots__ = ("__weakref__", "block_bytes", "dtype", "floating", "spec")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = spec.dtype
        self.floating = spec.dtype in FLOATS
        self.block_bytes = max(1, -(-spec.nbytes // BLOCK_ALIGNMENT)) * BLOCK_ALIGNMENT


class BlockView:
    """A block as a tensor: the array, and the form of the array used by a kernel library."""

    __slots__ = ("array", "library", "seen")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.library: object = None
        self.seen: Any = array

    def over(self, library: object, see: Callable[[Array], Any]) -> Any:
        """Return the array in the form used by `library`, converted by `see` and cached for the latest library."""
        if self.library is not library:
            self.seen = see(self.array)
            self.library = library
        return self.seen


class PoolBlock:
    """Bytes of the pool, with the views requested so far."""

    __slots__ = ("nbytes", "raw", "views")

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.nbytes = raw.nbytes
        self.views: dict[TensorKind, BlockView] = {}

    def view(self, kind: TensorKind) -> BlockView:
        """Return the block as a tensor of a kind."""
        view = self.views.get(kind)
        if view is None:
            if len(self.views) >= MAX_VIEWS_PER_BLOCK:
                self.views.clear()
            view = self.views[kind] = BlockView(array_over(self.raw[: kind.spec.nbytes], kind.spec))
        return view


class TensorStorage:
    """The memory of one tensor. After the last reference, and the last view, the block returns to the pool.

    is_rewritten  True for the fixed memory of a parameter, which plans write to; the content of other memory stays
    """

    __slots__ = ("__weakref__", "_shared", "block", "is_rewritten", "pool", "view")

    def __init__(self, pool: BlockPool, kind: TensorKind) -> None:
        nbytes = kind.block_bytes
        blocks = pool.free.get(nbytes)
        if blocks:
            block = blocks.pop()
            pool.kept_bytes -= nbytes
        else:
            block = PoolBlock(aligned_bytes(nbytes, BLOCK_ALIGNMENT))
        pool.used_bytes += nbytes
        if pool.used_bytes > pool.most_bytes:
            pool.most_bytes = pool.used_bytes
        self.pool = pool
        self.block = block
        self.is_rewritten = False
        self._shared: SharedBlock | None = None
        self.view = block.views.get(kind) or block.view(kind)

    @property
    def array(self) -> Array:
        """The elements, as an array over the block."""
        return self.view.array

    def part(self, kind: TensorKind, offset: int) -> StorageView:
        """Return the bytes from `offset` on as the memory of another tensor, without a copy."""
        if self._shared is None:
            self._shared = SharedBlock(self.pool, self.block)
        return StorageView(self._shared, kind, offset)

    def __del__(self) -> None:
        if self._shared is None:
            self.pool.give_back(self.block)


class SharedBlock:
    """A block used by a storage and by views of the storage; the last one returns the block to the pool."""

    __slots__ = ("block", "pool")

    def __init__(self, pool: BlockPool, block: PoolBlock) -> None:
        self.pool = pool
        self.block = block

    def __del__(self) -> None:
        self.pool.give_back(self.block)


class StorageView(TensorStorage):
    """The memory of a tensor inside the memory of another tensor, as of a slice or a reshape: no bytes of its own."""

    __slots__ = ("_offset",)

    def __init__(self, shared: SharedBlock, kind: TensorKind, offset: int) -> None:
        self.pool, self.block, self.is_rewritten = shared.pool, shared.block, False
        self._shared, self._offset = shared, offset
        raw = shared.block.raw[offset : offset + kind.spec.nbytes]
        self.view = BlockView(array_over(raw, kind.spec)) if offset else shared.block.view(kind)

    def part(self, kind: TensorKind, offset: int) -> StorageView:
        """Return the bytes from `offset` on, counted from the begin of the view, as the memory of another tensor."""
        assert self._shared is not None
        return StorageView(self._shared, kind, self._offset + offset)


class BlockPool:
    """The free blocks of a graph by size.

    used_bytes   the bytes of blocks in use
    most_bytes   the peak of `used_bytes`, at least KEPT_BYTES: the limit of free bytes
    kept_bytes   the bytes of free blocks, an estimate corrected by `trim`
    """

    def __init__(self) -> None:
        self.open = True
        self.free: dict[int, list[PoolBlock]] = {}
        self.used_bytes = 0
        self.most_bytes = KEPT_BYTES
        self.kept_bytes = 0

    def take(self, kind: TensorKind) -> TensorStorage:
        """Return memory for a tensor, with undefined content."""
        return TensorStorage(self, kind)

    def store_copy(self, kind: TensorKind, array: Array) -> TensorStorage:
        """Return memory for a tensor, with a copy of an array."""
        storage = self.take(kind)
        np.copyto(storage.view.array, array, casting="no")
        return storage

    def give_back(self, block: PoolBlock) -> None:
        """Keep a block without users for the next tensors."""
        self.used_bytes -= block.nbytes
        if self.open:
            blocks = self.free.get(block.nbytes)
            if blocks is None:
                blocks = self.free[block.nbytes] = []
            blocks.append(block)
            self.kept_bytes += block.nbytes
            if self.kept_bytes > self.most_bytes:
                self.trim()

    def trim(self) -> None:
        """Free blocks until at most half of the limit is kept: first the sizes freed first."""
        self.kept_bytes = self.free_bytes
        if self.kept_bytes > self.most_bytes:
            for nbytes in list(self.free):
                blocks = self.free.pop(nbytes, ())
                self.kept_bytes -= nbytes * len(blocks)
                if self.kept_bytes <= self.most_bytes // 2:
                    break

    @property
    def free_bytes(self) -> int:
        """The bytes of the free blocks."""
        return sum(nbytes * len(blocks) for nbytes, blocks in list(self.free.items()))

    def close(self) -> None:
        """Free all free blocks, and keep no block freed later."""
        self.open = False
        self.free.clear()


class KindRegistry:
    """The kinds in use, by spec."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[TensorSpec, TensorKind] = WeakValueDictionary()

    def kind_of(self, spec: TensorSpec) -> TensorKind:
        """Return the kind of a spec."""
        kind = self._known.get(spec)
        if kind is None:
            kind = self._known[spec] = TensorKind(spec)
        return kind


def element_type(kind: TensorKind) -> np.dtype[Any]:
    """Return NumPy's type of the elements."""
    return NUMPY[kind.dtype]
