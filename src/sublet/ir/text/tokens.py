"""The scanner of the text form, and a cursor over its tokens that builds error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from sublet.base.errors import TextError

T = TypeVar("T")

MAX_SHOWN = 40
"""Characters of a token quoted in a message."""

# The possessive quantifiers `*+` and `++` keep no backtracking state: unterminated strings take no memory.
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
    """A token of the text form: kind, text, and line number from 1."""

    kind: str
    text: str
    line: int


def scan(text: str, source: str) -> Iterator[Token]:
    """Yield the tokens of a text, then a token of kind "end". Raises TextError at a character that begins no token."""
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


def truncate(text: str, most: int = MAX_SHOWN) -> str:
    """Return a text cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


class Cursor:
    """A position among the tokens of a text; the cursor scans tokens on demand.

    Texts are untrusted: the first mistake ends the scan, so the text after a mistake takes no memory.
    """

    def __init__(self, text: str, source: str):
        self.source = source
        self.at = 0
        self._unscanned = scan(text, source)
        self._tokens = [next(self._unscanned)]

    def token_at(self, position: int) -> Token:
        """Return the token at a position; the last token for any position behind the end."""
        while position >= len(self._tokens) and self._tokens[-1].kind != "end":
            self._tokens.append(next(self._unscanned))
        return self._tokens[min(position, len(self._tokens) - 1)]

    @property
    def next(self) -> Token:
        """The next token to be consumed by the parser."""
        return self.token_at(self.at)

    def error_at_next(self, message: str) -> TextError:
        """Return an error at the next token."""
        return TextError(f"{self.source}:{self.next.line}: {message}")

    def error_at_last(self, message: str) -> TextError:
        """Return an error at the token consumed last; the message starts with the token."""
        self.at -= 1
        return self.error_at_next(f"{truncate(self.next.text)} {message}")

    def unexpected_token(self, expected: str) -> TextError:
        """Return an error for a next token other than `expected`."""
        return self.error_at_next(f"expected {expected}, found {truncate(self.next.text)!r}")

    def peek(self, ahead: int) -> str:
        """Return the text of the token `ahead` positions behind the next token; the end token's text behind the end."""
        return self.token_at(self.at + ahead).text

    def take(self, kind: str, what: str) -> str:
        """Consume a token of a kind and return the token's text. Raises TextError, which names the expected `what`."""
        if self.next.kind != kind:
            raise self.unexpected_token(what)
        self.at += 1
        return self.token_at(self.at - 1).text

    def accept(self, text: str) -> bool:
        """Consume the next token if the token's text is `text`; True if consumed."""
        if self.next.text != text or self.next.kind in ("string", "name"):
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        """Consume the next token. Raises TextError unless the token's text is `text`."""
        if not self.accept(text):
            raise self.unexpected_token(repr(text))

    def expect_end(self) -> None:
        """Raise TextError unless the text ends here."""
        if self.next.kind != "end":
            raise self.unexpected_token("the end")

    def sequence(self, item: Callable[[], T], *ends: str) -> list[T]:
        """Return items separated by commas, up to any of `ends` (not consumed)."""
        items: list[T] = []
        while self.next.text not in ends:
            if items:
                self.expect(",")
            items.append(item())
        return items

    def decode_string(self, text: str) -> str:
        """Return the string spelled by a JSON string token. Raises TextError for an invalid string."""
        try:
            decoded = str(json.loads(text))
            decoded.encode()
        except ValueError:  # a bad escape, a control character, half of a surrogate pair
            raise self.error_at_last("is not a JSON string") from None
        return decoded

    def string(self, what: str) -> str:
        """Consume a string token and return the decoded content."""
        return self.decode_string(self.take("string", what))

    def name(self, sigil: str) -> str:
        """Consume a name with a sigil (% or @) and return the name without the sigil."""
        if not self.next.text.startswith(sigil):
            raise self.unexpected_token(f"a name that starts with {sigil}")
        text = self.take("name", f"a name that starts with {sigil}")[1:]
        return self.decode_string(text) if text.startswith('"') else text

    def key(self) -> str:
        """Consume a word or a quoted string, used as a key or op name, and return the content."""
        return self.string("a name") if self.next.kind == "string" else self.take("word", "a name")

    def integer(self) -> int:
        """Consume an integer and return the value. Raises TextError for a value beyond 64 bits."""
        if not re.fullmatch("-?[0-9]+", self.next.text):
            raise self.unexpected_token("an integer")
        text = self.take("number", "an integer")
        # The check of the length comes first: Python refuses to parse thousands of digits.
        if len(text) > MAX_SHOWN or not -(1 << 63) <= int(text) < 1 << 64:
            raise self.error_at_last("does not fit in 64 bits")
        return int(text)
