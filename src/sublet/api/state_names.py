"""Pairs of a state found by name: the inputs of a model, each with the output that holds its next content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from sublet.base.errors import ModelError
from sublet.base.formatting import known_names
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value

AUTO_STATE = "auto"
"""The text that asks for the pairs found by name."""

StatePairs = Mapping[str, str] | str
"""The name of an output by the name of the input that the output updates, or `AUTO_STATE`."""

OLD = frozenset({"past", "prev", "previous", "old", "last", "init", "initial"})
NEW = frozenset({"present", "next", "new", "updated", "cur", "current"})
"""Words that mark a state before and after a call. A name and the name without its marks mean one state."""

LAST_MARKS = (re.compile("0"), re.compile("[a-z]*n"))
"""The last words that mark a state before and after a call by their last letter, as in `h0` and `hn`."""

SIDES = (frozenset({"in", "input"}), frozenset({"out", "output"}))
"""Words of any input and output. They mark a state only beside a word of `KINDS`: an image is no state."""

KINDS = frozenset({"state", "states", "hidden", "cell", "cache", "caches", "memory", "mem", "h", "c", "key", "value"})

CACHE_WORDS = ("key", "values")
"""Words after `past` or `present` in the names of caches, as in `past_key_values.0.key` and `present.0.key`."""


def pairs_by_name(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value], *, may_grow: bool = False
) -> dict[str, str]:
    """Return the pairs of inputs and outputs whose names differ by words such as past and present, or h and hn.

    Both tensors of a pair have one type; with `may_grow`, one element type and one rank, as caches over ranges have. An
    input or output with several partners has no pair.
    """
    old = {name: _stems(name, OLD, 0) for name in inputs}
    new = {name: _stems(name, NEW, 1) for name in outputs}
    possible = [
        (name, result)
        for (name, before), (result, after) in product(old.items(), new.items())
        if name != result and before & after and _have_one_type(inputs[name], outputs[result], may_grow)
    ]
    first, second = [name for name, _ in possible], [result for _, result in possible]
    return {name: result for name, result in possible if first.count(name) == second.count(result) == 1}


def resolve_state(
    state: StatePairs | None, inputs: Mapping[str, Value], outputs: Mapping[str, Value], *, may_grow: bool = False
) -> dict[str, str]:
    """Return the declared pairs, or the pairs of `pairs_by_name`. Raises ModelError if no pair is found by name."""
    if not isinstance(state, str):
        return dict(state or {})
    if state != AUTO_STATE:
        raise ModelError(f"state {state!r}: expected pairs of an input and an output, or 'auto'")
    found = pairs_by_name(inputs, outputs, may_grow=may_grow)
    if not found:
        raise ModelError(
            "state auto: no output is the next content of an input by name and type. "
            f"The inputs are {known_names(inputs)}; "
            f"the outputs are {known_names(outputs)}. Name each pair as INPUT=OUTPUT"
        )
    return found


def _have_one_type(one: Value, other: Value, may_grow: bool) -> bool:
    """True for two tensors of one type, or with `may_grow` of one element type and rank."""
    a, b = one.spec, other.spec
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
        return False
    return a == b or (may_grow and a.dtype is b.dtype and len(a.shape) == len(b.shape))


def _stems(name: str, marks: frozenset[str], side: int) -> set[tuple[str, ...]]:
    """Return the words of a name, with and without the marks; `side` is 0 for an input, 1 for an output."""
    words = [word.lower() for word in re.findall(r"[A-Za-z]+|[0-9]+", name)]
    for i, word in enumerate(words):
        if word in ("past", "present") and tuple(words[i + 1 : i + 3]) == CACHE_WORDS:
            words[i + 1 : i + 3] = []
            break
    if KINDS & {*words, *(word[:-1] for word in words[-1:])}:
        marks = marks | SIDES[side]
    stems = {tuple(words), tuple(word for word in words if word not in marks)}
    if words and LAST_MARKS[side].fullmatch(words[-1]):
        stems |= {(*stem[:-1], *filter(None, [stem[-1][:-1]])) for stem in stems if stem}
    return stems
