"""Outputs that kernels write whether or not anybody wants them.

An operator may let its optional outputs go; a kernel of it need not. ONNX Runtime's write through a null pointer where
one of these is missing, or refuse the node. Found by `tests/runtime/omitted_outputs.py`, which runs every operator of
several outputs in every subset of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

NONE: frozenset[int] = frozenset()
Rule = Callable[[Sequence[bool], int], frozenset[int]]


def _all(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    return frozenset(range(outputs))


def _training(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """With more than one output it trains, and before version 14 that is all that tells."""
    return frozenset(range(outputs)) if outputs > 1 else NONE


def _cached(past: int) -> Rule:
    """The two inputs from `past` on are earlier keys and values; they go into the present ones."""
    return lambda inputs, outputs: frozenset({1, 2}) if any(inputs[past : past + 2]) else NONE


WRITTEN: Mapping[tuple[str, str], Rule] = {
    ("", "Attention"): _cached(4),
    ("", "BatchNormalization"): _training,
    ("", "Split"): _all,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): _cached(5),
}
"""By domain and operator."""


def written_outputs(domain: str, op_type: str, inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """The positions of the outputs that a kernel writes in any case.

    `inputs` says which are given; `outputs` is how many the node lists, empty ones included.
    """
    rule = WRITTEN.get((domain, op_type))
    return NONE if rule is None else rule(inputs, outputs)
