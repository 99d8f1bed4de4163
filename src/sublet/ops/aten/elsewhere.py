"""Operators that do not keep to what their schemas say on a device: what a graph may not have there, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.ops.aten.dialect import PREFIX

SEEDS: Mapping[str, tuple[int, ...]] = {
    f"{PREFIX}_scaled_dot_product_flash_attention.default": (6, 7),
    f"{PREFIX}_scaled_dot_product_efficient_attention.default": (2, 3),
    f"{PREFIX}_scaled_dot_product_cudnn_attention.default": (6, 7),
}
"""Results, by position, that are seeds of numbers drawn. They lie on the CPU, or on the device while a CUDA graph is
captured, whatever tracing says, and their readers take them there. Nobody reads them where nothing is dropped."""

STATISTICS = (f"{PREFIX}cudnn_batch_norm.default", f"{PREFIX}miopen_batch_norm.default")
"""They change running statistics in training, and their schemas do not say so."""


def unsound(name: str, arguments: Mapping[str, Any]) -> str:
    """Why an operator with these arguments, by name, cannot be planned on a device; "" where it can."""
    if name in SEEDS and arguments.get("dropout_p"):
        return f"{name} with dropout: where its seed lies depends on how it is run"
    if name in STATISTICS and arguments.get("training"):
        return f"{name} in training changes running statistics unsaid"
    return ""
