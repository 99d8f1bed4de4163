"""Device exceptions: operators violating their schemas on a device, hence forbidden in a graph, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.ops.aten.dialect import PREFIX

SEED_RESULTS: Mapping[str, tuple[int, ...]] = {
    f"{PREFIX}_scaled_dot_product_flash_attention.default": (6, 7),
    f"{PREFIX}_scaled_dot_product_efficient_attention.default": (2, 3),
    f"{PREFIX}_scaled_dot_product_cudnn_attention.default": (6, 7),
}
"""Positions of results that are seeds of random numbers. Seeds lie on the CPU, or on the device during the capture of a
CUDA graph, whatever tracing says, and readers expect them there. Without dropout no operator reads the seeds.
"""

UNDECLARED_UPDATES = (f"{PREFIX}cudnn_batch_norm.default", f"{PREFIX}miopen_batch_norm.default")
"""Operators changing running statistics in training, contrary to their schemas."""


def why_not_plannable(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the reason why an operator with the given arguments cannot be planned on a device; "" if plannable."""
    if name in SEED_RESULTS and arguments.get("dropout_p"):
        return f"{name} with dropout: the device of its seed depends on CUDA graph capture"
    if name in UNDECLARED_UPDATES and arguments.get("training"):
        return f"{name} in training updates running statistics, which its schema does not declare"
    return ""
