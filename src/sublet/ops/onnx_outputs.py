"""Outputs written by ONNX Runtime kernels even if unused.

The operator's optional outputs may be omitted, but some kernels of ONNX Runtime then write through a null pointer or
refuse the node. `tests/runtime/omitted_outputs.py` found the entries by running every operator with several outputs
with every subset of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

NONE: frozenset[int] = frozenset()
Rule = Callable[[Sequence[bool], int], frozenset[int]]


def _every_output(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    return frozenset(range(outputs))


def _training(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """Return all outputs if more than one is listed.

    More than one output means training mode; before version 14 no attribute says so.
    """
    return frozenset(range(outputs)) if outputs > 1 else NONE


def _cache_outputs(past: int) -> Rule:
    """Return the rule of attention caches: outputs 1 and 2 if input `past` or `past` + 1 is present.

    The inputs are earlier keys and values; the outputs are the updated keys and values.
    """
    return lambda inputs, outputs: frozenset({1, 2}) if any(inputs[past : past + 2]) else NONE


ALWAYS_WRITTEN: Mapping[tuple[str, str], Rule] = {
    ("", "Attention"): _cache_outputs(4),
    ("", "BatchNormalization"): _training,
    ("", "Split"): _every_output,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): _cache_outputs(5),
}
"""The rule of each operator, by domain and name."""


def always_written_outputs(domain: str, op_type: str, inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """Return the positions of the outputs written by the kernel in any case.

    `inputs` is True for each input present; `outputs` is the number of outputs listed by the node, with omitted ones.
    """
    rule = ALWAYS_WRITTEN.get((domain, op_type))
    return NONE if rule is None else rule(inputs, outputs)
