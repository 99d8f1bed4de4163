"""One possible state of a run: what lies where, and what every pointer stands for.

A value that a loop's body computes has the same token in every round. When a round ends, the bytes that a
pointer still stands for become of an earlier round: their token gets a mark; all others of the body are
forgotten. When the loop ends, they get another, so that its next run does not take them for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sublet.checker.contents import cut, joined
from sublet.checker.memory import Content, Memory, Piece
from sublet.plan import Region

EARLIER = "\x01"
ENDED = "\x02"


@dataclass(frozen=True, slots=True)
class Target:
    """What a pointer stands for: where it lies, and what its bytes are."""

    region: Region
    content: Content


@dataclass
class State:
    """Memory and pointers; states with the same pointers are one, of what their memories agree on."""

    memory: Memory
    pointers: dict[str, Target]

    def copy(self) -> State:
        return State(self.memory.copy(), dict(self.pointers))

    @property
    def key(self) -> tuple[tuple[str, Target], ...]:
        """What tells states apart."""
        return tuple(sorted(self.pointers.items(), key=lambda entry: entry[0]))

    @property
    def regions(self) -> Mapping[str, Region]:
        """Where the pointers point."""
        return {name: target.region for name, target in self.pointers.items()}

    def resolve(self, content: Content) -> Content:
        """A content with the bytes of pointers given as what they are now."""
        if not self.pointers or not any(piece.token in self.pointers for piece in content):
            return content
        return joined(self._piece(piece) for piece in content)

    def _piece(self, piece: Piece) -> Content:
        target = self.pointers.get(piece.token)
        return (piece,) if target is None else cut(target.content, piece.start, piece.length)

    def keep(self, names: Iterable[str]) -> None:
        """Drop all pointers but these."""
        self.pointers = {name: self.pointers[name] for name in names if name in self.pointers}

    def rename(self, body: frozenset[str], mark: str) -> None:
        """Mark the tokens of a body that pointers stand for, and forget its others."""
        held = {piece.token for target in self.pointers.values() for piece in target.content}

        def renamed(token: str | None) -> str | None:
            if token is None or token.rstrip(EARLIER + ENDED) not in body:
                return token
            return token + mark if token in held else None

        self.memory = self.memory.renamed(renamed)
        self.pointers = {name: _renamed(target, renamed) for name, target in self.pointers.items()}


def shown(token: str) -> str:
    """A token as messages show it: primes for earlier rounds."""
    return token.replace(EARLIER, "'").replace(ENDED, "!")


def _renamed(target: Target, renamed: Callable[[str | None], str | None]) -> Target:
    pieces = tuple(Piece(renamed(token) or token, start, length) for token, start, length in target.content)
    return Target(target.region, pieces)
