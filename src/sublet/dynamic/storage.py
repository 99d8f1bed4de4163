"""Memory of tensors that are computed at once: blocks from a pool, given back when nobody holds them any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ops.nn.shapes import FLOATS
from sublet.runtime.dtypes import array_over
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Raw, aligned_bytes

LINE = 64
"""Bytes that the size of a block is a multiple of, and its address too."""

KEPT_BYTES = 16 << 20
"""Bytes of free blocks that a pool keeps at least. It keeps no more than these, or than were in use at once, whichever
is more: a step of training finds all its blocks again, and inputs of ever other lengths do not pile up."""

MOST_VIEWS = 16
"""Kinds of tensors that one block remembers its views as. Beyond these it forgets all of them."""


class Kind:
    """A spec, once for each graph, so that comparing two is comparing where they are."""

    __slots__ = ("__weakref__", "block_bytes", "dtype", "floating", "spec")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = spec.dtype
        self.floating = spec.dtype in FLOATS
        self.block_bytes = max(1, -(-spec.nbytes // LINE)) * LINE


class View:
    """A block as a tensor: its array, and what the kernels of a library see of that."""

    __slots__ = ("array", "library", "seen")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.library: object = None
        self.seen: Any = array

    def over(self, library: object, see: Callable[[Array], Any]) -> Any:
        """The array as `library` sees it."""
        if self.library is not library:
            self.seen = see(self.array)
            self.library = library
        return self.seen


class Block:
    """Bytes of the pool, and the views of them that were asked for so far."""

    __slots__ = ("nbytes", "raw", "views")

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.nbytes = raw.nbytes
        self.views: dict[Kind, View] = {}

    def view(self, kind: Kind) -> View:
        """The block as a tensor of a kind."""
        found = self.views.get(kind)
        if found is None:
            if len(self.views) >= MOST_VIEWS:
                self.views.clear()
            found = self.views[kind] = View(array_over(self.raw[: kind.spec.nbytes], kind.spec))
        return found


class Storage:
    """What one tensor holds. When nobody holds it any more, its block goes back to the pool."""

    __slots__ = ("__weakref__", "block", "pool", "view")

    def __init__(self, pool: Pool, kind: Kind) -> None:
        nbytes = kind.block_bytes
        blocks = pool.free.get(nbytes)
        if blocks:
            block = blocks.pop()
            pool.kept_bytes -= nbytes
        else:
            block = Block(aligned_bytes(nbytes, LINE))
        pool.used_bytes += nbytes
        if pool.used_bytes > pool.most_bytes:
            pool.most_bytes = pool.used_bytes
        self.pool = pool
        self.block = block
        self.view = block.views.get(kind) or block.view(kind)

    @property
    def array(self) -> Array:
        """Its elements, where they lie."""
        return self.view.array

    def __del__(self) -> None:
        pool, block = self.pool, self.block
        pool.used_bytes -= block.nbytes
        if pool.open:
            blocks = pool.free.get(block.nbytes)
            if blocks is None:
                blocks = pool.free[block.nbytes] = []
            blocks.append(block)
            pool.kept_bytes += block.nbytes
            if pool.kept_bytes > pool.most_bytes:
                pool.trim()


class Pool:
    """Blocks that are free, by their size.

    used_bytes   of the blocks that somebody holds
    most_bytes   the most that were in use at once, KEPT_BYTES at least: a limit for what is kept free
    kept_bytes   of the blocks that are free; `trim` counts them anew
    """

    def __init__(self) -> None:
        self.open = True
        self.free: dict[int, list[Block]] = {}
        self.used_bytes = 0
        self.most_bytes = KEPT_BYTES
        self.kept_bytes = 0

    def take(self, kind: Kind) -> Storage:
        """Room for a tensor, with anything in it."""
        return Storage(self, kind)

    def filled(self, kind: Kind, array: Array) -> Storage:
        """Room for a tensor, with a copy of an array in it."""
        storage = self.take(kind)
        np.copyto(storage.view.array, array, casting="no")
        return storage

    def trim(self) -> None:
        """Let half of the free bytes go: the blocks of those sizes that were free first."""
        self.kept_bytes = self.free_bytes
        if self.kept_bytes > self.most_bytes:
            for nbytes in list(self.free):
                blocks = self.free.pop(nbytes, ())
                self.kept_bytes -= nbytes * len(blocks)
                if self.kept_bytes <= self.most_bytes // 2:
                    break

    @property
    def free_bytes(self) -> int:
        """Bytes of the blocks that nobody holds."""
        return sum(nbytes * len(blocks) for nbytes, blocks in list(self.free.items()))

    def close(self) -> None:
        """Keep no block that nobody holds, now and later."""
        self.open = False
        self.free.clear()


class Kinds:
    """The kinds of a graph that something holds."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[TensorSpec, Kind] = WeakValueDictionary()

    def of(self, spec: TensorSpec) -> Kind:
        """The kind of a spec."""
        found = self._known.get(spec)
        if found is None:
            found = self._known[spec] = Kind(spec)
        return found


def element_type(kind: Kind) -> np.dtype[Any]:
    """NumPy's type of the elements."""
    return NUMPY[kind.dtype]
