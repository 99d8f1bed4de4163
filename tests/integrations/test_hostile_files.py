"""Damaged files of every format: one error, bounded memory, and nothing that a whole file does not cause."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from sublet.base.errors import PlanError, TextError
from sublet.base.files import MOST_VALUES, count_values, parse_json
from sublet.ir.text import parse
from tests.hostile_files import FORMATS
from tests.integrations.onnx.damage import judge_many


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_one_error_each(name: str) -> None:
    assert judge_many(FORMATS[name], 60)["refused"] > 20


def test_json_is_bounded_before_it_is_parsed() -> None:
    text = "[" + "{}," * MOST_VALUES + "{}]"
    tracemalloc.start()
    try:
        with pytest.raises(PlanError, match="more than 4,194,304 JSON values"):
            parse_json(text, "plan.json", PlanError)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_bound_on_values_is_one() -> None:
    value = {"a": [1, 2, {"b": "x, [y], {z}"}], "c": {}}
    assert count_values(json.dumps(value)) >= 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        (b"\xff\xfe[\x00]\x00", "utf-8"),
        ("[" * 10**5, "recursion"),
    ],
)
def test_json_that_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(PlanError, match=f"plan.json: is not valid JSON: .*{words}"):
        parse_json(text, "plan.json", PlanError)


@pytest.mark.parametrize("text", ['graph @g(%"' + "a" * 10**6, "graph @g(" + '"\\a' * 10**5, "graph" + " @g" * 10**5])
def test_a_text_that_has_no_end_takes_no_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TextError):
            parse(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
