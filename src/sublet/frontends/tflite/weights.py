"""The contents of constants: bytes of the file, read as an array when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import TensorSpec
from sublet.runtime.dtypes import array_over, packed, unpack


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant as it lies in the file."""

    spec: TensorSpec
    content: memoryview

    def array(self) -> NDArray[Any]:
        """The elements, one by one."""
        raw = np.frombuffer(self.content, np.uint8)
        return unpack(raw, self.spec) if packed(self.spec) else array_over(raw, self.spec)
