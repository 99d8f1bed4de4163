"""Names and sentences keep within measures, so that a reader of the field reads code and documents at first sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prose import ROOT, count, documents, measure_page, python_files


def test_docstrings_name_nouns_instead_of_pronouns() -> None:
    assert count(python_files()).pronouns_per_100 <= 4
    dense = {path.name: count([path]) for path in python_files()}
    assert not [name for name, prose in dense.items() if prose.words >= 40 and prose.pronouns_per_100 > 8]


def test_docstrings_open_with_an_action_or_a_thing() -> None:
    assert not count(python_files()).riddles


def test_names_of_functions_name_their_object() -> None:
    prose = count(python_files())
    assert len(prose.bare) <= 0.02 * prose.definitions, prose.bare


def test_class_names_are_unique() -> None:
    prose = count(python_files())
    assert prose.shared_class_names <= 0.06, [name for name, n in prose.classes.items() if n > 1]


def test_docstrings_have_no_empty_phrases() -> None:
    assert not count(python_files()).phrases


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_have_short_sentences_and_lines(path: Path) -> None:
    page = measure_page(path.read_text(encoding="utf-8"))
    assert page.words_per_sentence <= 18
    assert page.words < 50 or page.pronouns_per_100 <= 6
    assert not page.long_lines
