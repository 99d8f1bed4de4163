"""Reading and writing at indices."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.runtime.aten.kernel import Fast

KERNELS: Mapping[str, Fast] = {}
