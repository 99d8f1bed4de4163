"""Constants of a .tflite file, converted to arrays on read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import TensorSpec
from sublet.runtime.dtypes import array_over, is_packed, unpack


@dataclass(frozen=True, slots=True)
class FileConstant:
    """A constant stored in the file."""

    spec: TensorSpec
    content: memoryview

    def array(self) -> NDArray[Any]:
        """Return the elements; sub-byte elements are unpacked to a byte each."""
        raw = np.frombuffer(self.content, np.uint8)
        return unpack(raw, self.spec) if is_packed(self.spec) else array_over(raw, self.spec)
