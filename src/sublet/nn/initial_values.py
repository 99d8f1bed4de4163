"""Initial values of parameters and states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec

Array = NDArray[Any]

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""A function `draw(generator, shape)` returning an array of the shape."""


@dataclass(frozen=True)
class ArrayContent:
    """An initial value given as an array."""

    content: Array

    def array(self) -> Array:
        """Return the array."""
        return self.content


@dataclass(frozen=True)
class RandomContent:
    """An initial value drawn at compile time, reproducibly: the parameter's name seeds the generator."""

    name: str
    spec: TensorSpec
    draw: Draw

    def array(self) -> Array:
        """Return the drawn array, of the shape and type of `spec`."""
        random = np.random.default_rng(crc32(self.name.encode()))
        return np.array(self.draw(random, self.spec.shape), NUMPY[self.spec.dtype], order="C")
