"""Other uses of a command, made from its examples: other extents, types and attributes, as far as it takes them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np

from sublet.base.errors import SubletError
from sublet.ir.graph import Attr
from sublet.ops.nn.command import Command
from tests.nn.examples import FORM, Case, Example, case_of

CHANGES = 3
"""At most so many at once."""

EXTENTS = (1, 1, 1, 2, 3, 4, 5, 8, 17)
FLOATS = ("f16", "bf16", "f32", "f64")


def variation(record: Command, example: Example, rng: random.Random) -> Case | None:
    """The example with some changes; None where the command does not take them."""
    for _ in range(rng.randint(1, CHANGES)):
        change = rng.choice((_one_extent, _equal_extents, _type, _attribute, _attribute))
        example = change(example, rng)
    try:
        case = case_of(record, example, rng.randrange(1 << 30))
        (node,) = case.graph.nodes
        with np.errstate(all="ignore"):
            record.compute(*(None if v is None else case.arrays.get(v.name) for v in node.inputs), **node.attrs)
    except (SubletError, ValueError, IndexError):
        return None
    return case


def _inputs(example: Example, change: re.Pattern[str], to: str, which: set[int] | None = None) -> Example:
    texts = [change.sub(to, text) if which is None or i in which else text for i, text in enumerate(example.inputs)]
    return replace(example, inputs=tuple(texts))


def _extents(text: str) -> list[str]:
    match = FORM.fullmatch(text)
    return match["shape"].split(",") if match and match["shape"] else []


def _with_extents(text: str, extents: list[str]) -> str:
    return re.sub(r"\[.*\]", f"[{','.join(extents)}]", text)


def _one_extent(example: Example, rng: random.Random) -> Example:
    """One axis of one input of another extent."""
    texts = list(example.inputs)
    places = [(i, axis) for i, text in enumerate(texts) for axis in range(len(_extents(text)))]
    if places:
        i, axis = rng.choice(places)
        extents = _extents(texts[i])
        extents[axis] = str(rng.choice(EXTENTS))
        texts[i] = _with_extents(texts[i], extents)
    return replace(example, inputs=tuple(texts))


def _equal_extents(example: Example, rng: random.Random) -> Example:
    """All axes of one extent, of whatever input, of another one."""
    found = sorted({extent for text in example.inputs for extent in _extents(text)})
    if not found:
        return example
    one, other = rng.choice(found), str(rng.choice(EXTENTS))
    changed = [_replaced(t, one, other) for t in example.inputs]
    return replace(example, inputs=tuple(changed))


def _type(example: Example, rng: random.Random) -> Example:
    """All floats of one type of another."""
    found = sorted({text.partition("[")[0] for text in example.inputs} & set(FLOATS))
    if not found:
        return example
    return _inputs(example, re.compile(rf"^{rng.choice(found)}\["), f"{rng.choice(FLOATS)}[")


def _attribute(example: Example, rng: random.Random) -> Example:
    """One number of an attribute a little larger or smaller, or a flag turned over."""
    if not example.attrs:
        return example
    key = rng.choice(sorted(example.attrs))
    value = example.attrs[key]
    changed: Attr = value
    if isinstance(value, int):
        changed = _moved(value, rng)
    elif isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
        at = rng.randrange(len(value))
        changed = tuple(_moved(int(item), rng) if i == at else int(item) for i, item in enumerate(value))
    return replace(example, attrs={**example.attrs, key: changed})


def _moved(number: int, rng: random.Random) -> int:
    return rng.choice((0, 1, number + 1, number - 1))


def _replaced(text: str, extent: str, other: str) -> str:
    extents = _extents(text)
    return _with_extents(text, [other if each == extent else each for each in extents]) if extents else text
