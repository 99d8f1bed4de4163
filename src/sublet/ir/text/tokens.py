"""The words of the text form, and a cursor over them that knows how to complain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from sublet.base.errors import TextError

T = TypeVar("T")

MAX_SHOWN = 40
"""Characters of a token that a message repeats."""

# The quantifiers `*+` and `++` keep no state to go back to: a text of strings without an end takes no memory.
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]++|\#[^\n]*+)
  | (?P<name>[%@](?:[A-Za-z0-9_./+$-]++|"(?:[^"\\\n]++|\\.)*+"))
  | (?P<string>"(?:[^"\\\n]++|\\.)*+")
  | (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|inf\b|nan\b))
  | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
  | (?P<mark>[{}()\[\],;:=])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def scan(text: str, source: str) -> Iterator[Token]:
    """Yield the tokens of a text, then one of kind "end". Raises TextError at a character that begins no token."""
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise TextError(f"{source}:{line}: unexpected character {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            yield Token(kind, match.group(), line)
        line += match.group().count("\n")
        position = match.end()
    yield Token("end", "end of text", line)


def short(text: str, most: int = MAX_SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class Cursor:
    """A position among the tokens of a text, which are scanned as the parser comes to them.

    A text is from a stranger: the first mistake ends the scan, so what follows the mistake takes no memory.
    """

    def __init__(self, text: str, source: str):
        self.source = source
        self.at = 0
        self._unscanned = scan(text, source)
        self._tokens = [next(self._unscanned)]

    def token_at(self, position: int) -> Token:
        """Return the token at a position; the last one for any position behind the end."""
        while position >= len(self._tokens) and self._tokens[-1].kind != "end":
            self._tokens.append(next(self._unscanned))
        return self._tokens[min(position, len(self._tokens) - 1)]

    @property
    def next(self) -> Token:
        """The token that the parser has not taken yet."""
        return self.token_at(self.at)

    def fail(self, message: str) -> TextError:
        """An error at the next token."""
        return TextError(f"{self.source}:{self.next.line}: {message}")

    def fail_back(self, message: str) -> TextError:
        """An error at the token just taken; the message starts with it."""
        self.at -= 1
        return self.fail(f"{short(self.next.text)} {message}")

    def unexpected(self, wanted: str) -> TextError:
        return self.fail(f"expected {wanted}, found {short(self.next.text)!r}")

    def peek(self, ahead: int) -> str:
        """The text of the token `ahead` of the next one, of the last one behind the end."""
        return self.token_at(self.at + ahead).text

    def take(self, kind: str, what: str) -> str:
        if self.next.kind != kind:
            raise self.unexpected(what)
        self.at += 1
        return self.token_at(self.at - 1).text

    def accept(self, text: str) -> bool:
        if self.next.text != text or self.next.kind in ("string", "name"):
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.unexpected(repr(text))

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.unexpected("the end")

    def sequence(self, item: Callable[[], T], *ends: str) -> list[T]:
        """Items separated by commas, up to one of `ends` (not consumed)."""
        items: list[T] = []
        while self.next.text not in ends:
            if items:
                self.expect(",")
            items.append(item())
        return items

    def unquoted(self, text: str) -> str:
        """The string that the token just taken spells."""
        try:
            found = str(json.loads(text))
            found.encode()
        except ValueError:  # a bad escape, a control character, half of a surrogate pair
            raise self.fail_back("is not a string as JSON spells it") from None
        return found

    def string(self, what: str) -> str:
        return self.unquoted(self.take("string", what))

    def name(self, sigil: str) -> str:
        if not self.next.text.startswith(sigil):
            raise self.unexpected(f"a name that starts with {sigil}")
        text = self.take("name", f"a name that starts with {sigil}")[1:]
        return self.unquoted(text) if text.startswith('"') else text

    def key(self) -> str:
        return self.string("a name") if self.next.kind == "string" else self.take("word", "a name")

    def integer(self) -> int:
        if not re.fullmatch("-?[0-9]+", self.next.text):
            raise self.unexpected("an integer")
        text = self.take("number", "an integer")
        # The length comes first: Python refuses to read thousands of digits.
        if len(text) > MAX_SHOWN or not -(1 << 63) <= int(text) < 1 << 64:
            raise self.fail_back("does not fit in 64 bits")
        return int(text)
