"""Measures of names and sentences: pronouns, riddle openings, bare names, shared class names, phrases without content.

python -m tests.support.prose [PATH ...]     # the measures of src/sublet and the documents, worst files first
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sublet"

PRONOUNS = frozenset(
    [
        "it",
        "its",
        "that",
        "what",
        "which",
        "they",
        "them",
        "these",
        "those",
        "this",
        "one",
        "ones",
        "other",
        "others",
        "such",
        "so",
        "there",
        "whose",
        "who",
        "whoever",
        "whatever",
        "somebody",
        "nobody",
        "anybody",
        "nothing",
        "something",
        "anything",
        "everything",
    ]
)
"""Words in place of a noun, and relatives that hide the subject of a clause."""

RIDDLES = frozenset(
    ["what", "whether", "which", "how", "where", "who", "why", "of", "by", "from", "when", "whose", "as"]
)
"""First words of a docstring that neither say what a function does nor what its result is."""

BARE = re.compile(
    r"_*([a-z]+(ed|en|wn|ld|ght)|kept|left|made|held|said|told|met|cut|laid|lost|put|drawn|taken|given|seen|meant|found|bound|read|due|"
    r"alike|apart|elsewhere|outside|inside|within|late|gone|once|both|several|one|other|before|after|there|behind|instead|first|last|"
    r"whole|again|together|beside|along|around|near|free|own|idle|steady|unsteady|ambiguous)"
)
"""A function's name that is one participle, adverb or adjective, and leaves open of which thing."""

EMPTY_PHRASES = ("told", "stands for", "stand for", "whoever", "nobody", "anew", "handed on", "hands on", "as it is")
"""Phrases that a reader has to guess the meaning of."""


@dataclass
class Prose:
    """Counts over the docstrings and definitions of Python files."""

    words: int = 0
    pronouns: int = 0
    riddles: list[str] = field(default_factory=list)
    definitions: int = 0
    bare: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)

    @property
    def pronouns_per_100(self) -> float:
        """Pronouns and relatives per 100 words of the first paragraphs of docstrings."""
        return 100 * self.pronouns / max(1, self.words)

    @property
    def shared_class_names(self) -> float:
        """The share of classes with the name of another class."""
        return sum(n for n in self.classes.values() if n > 1) / max(1, self.classes.total())


def count(paths: list[Path]) -> Prose:
    """Return the counts over Python files."""
    prose = Prose()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                prose.classes[node.name] += 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                prose.definitions += 1
                if BARE.fullmatch(node.name):
                    prose.bare.append(f"{path.name}: {node.name}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                _count_docstring(prose, path, node)
    return prose


def _count_docstring(
    prose: Prose, path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
) -> None:
    docstring = ast.get_docstring(node)
    if not docstring:
        return
    name = getattr(node, "name", "")
    tokens = [word.lower() for word in re.findall(r"[A-Za-z']+", docstring.split("\n\n")[0])]
    prose.words += len(tokens)
    prose.pronouns += sum(word in PRONOUNS for word in tokens)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and tokens and tokens[0] in RIDDLES:
        prose.riddles.append(f"{path.name}: {name}")
    flat = " ".join(docstring.lower().split())
    prose.phrases += [f"{path.name}: {name}: {phrase}" for phrase in EMPTY_PHRASES if re.search(rf"\b{phrase}\b", flat)]


@dataclass(frozen=True)
class Page:
    """The measures of one document."""

    words: int
    words_per_sentence: float
    pronouns_per_100: float
    long_lines: list[int]


def measure_page(text: str) -> Page:
    """Return the measures of a Markdown document, without code, tables and headings."""
    prose, in_code, long_lines = [], False, []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            in_code = not in_code
        skipped = in_code or line.startswith(("```", "    ", "|", "#", "!["))
        prose.append("" if skipped else re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", line))
        if not in_code and not line.startswith(("    ", "|", "![")) and len(line) > 120:
            long_lines.append(number)
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", "\n".join(prose)))
    sentences = [
        sentence
        for paragraph in re.split(r"\n\s*\n", plain)
        for sentence in re.split(r"(?<=[.;:?!])\s+", paragraph)
        if re.search("[A-Za-z]", sentence)
    ]
    words = [word.lower() for word in re.findall(r"[A-Za-z']+", plain)]
    pronouns = sum(word in PRONOUNS for word in words)
    return Page(len(words), len(words) / max(1, len(sentences)), 100 * pronouns / max(1, len(words)), long_lines)


def python_files(root: Path = SOURCE) -> list[Path]:
    """Return the Python files below a folder, or the file itself."""
    return [root] if root.is_file() else sorted(root.rglob("*.py"))


def documents() -> Iterator[Path]:
    """Yield the documents that users and contributors read."""
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main() -> None:
    paths = [file for root in map(Path, sys.argv[1:] or [str(SOURCE)]) for file in python_files(root)]
    prose = count(paths)
    print(
        f"{len(paths)} files, pronouns per 100 words {prose.pronouns_per_100:.1f}, "
        f"riddle openings {len(prose.riddles)}, bare names {len(prose.bare)} of {prose.definitions}, "
        f"shared class names {prose.shared_class_names:.1%}, "
        f"empty phrases {len(prose.phrases)}"
    )
    worst = sorted(((count([path]).pronouns_per_100, path) for path in paths), reverse=True)[:10]
    print(*(f"  {density:4.1f} {path}" for density, path in worst), sep="\n")
    print("  bare:", ", ".join(prose.bare[:40]))
    print("  shared:", ", ".join(f"{name} {n}" for name, n in prose.classes.most_common(40) if n > 1))
    print("  riddles:", ", ".join(prose.riddles[:40]))
    print("  phrases:", ", ".join(prose.phrases[:40]))
    for path in documents():
        page = measure_page(path.read_text(encoding="utf-8"))
        print(
            f"  {path.relative_to(ROOT)}: {page.words_per_sentence:.1f} words a sentence, "
            f"{page.pronouns_per_100:.1f} pronouns per 100 words, {len(page.long_lines)} long lines"
        )


if __name__ == "__main__":
    main()
