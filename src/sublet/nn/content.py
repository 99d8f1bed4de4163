"""What parameters contain at first."""

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
"""`draw(generator, shape)`: an array of that shape."""


@dataclass(frozen=True)
class Content:
    """An array."""

    content: Array

    def array(self) -> Array:
        return self.content


@dataclass(frozen=True)
class Drawn:
    """Drawn when the graph is compiled, by a generator seeded by the parameter's name, so that two runs start alike."""

    name: str
    spec: TensorSpec
    draw: Draw

    def array(self) -> Array:
        random = np.random.default_rng(crc32(self.name.encode()))
        return np.array(self.draw(random, self.spec.shape), NUMPY[self.spec.dtype], order="C")
