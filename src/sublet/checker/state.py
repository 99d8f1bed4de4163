"""One possible state of a run: what lies where, and what every pointer stands for.

A value that a loop's body computes has the same token in every round. When a round ends, the bytes that a
pointer still stands for become of an earlier round: their token gets a mark; all others of the body are
forgotten. When the loop ends, they get another, so that its next run does not take them for its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Memory and pointers; states with the same pointers are one, of what their memories agree on.

    `ways` tells by which way loops and branches were left, as far as that decides what comes next.
    """

    memory: Memory
    pointers: dict[str, Target]
    ways: dict[str, int]

    def copy(self) -> State:
        return State(self.memory.copy(), dict(self.pointers), dict(self.ways))

    @property
    def key(self) -> object:
        """What tells states apart."""
        pointers = sorted(self.pointers.items(), key=lambda entry: entry[0])
        return tuple(pointers), tuple(sorted(self.ways.items()))

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
        """Mark the tokens of a body that pointers stand for, and forget its others.

        They are numbered anew in the order of the pointers, so that there are only so many names.
        """
        fresh: dict[str, str] = {}
        for _, target in sorted(self.pointers.items(), key=lambda entry: entry[0]):
            for piece in target.content:
                if _base(piece.token) in body and piece.token not in fresh:
                    fresh[piece.token] = f"{_base(piece.token)}{mark}{len(fresh)}"

        def renamed(token: str | None) -> str | None:
            return token if token is None or _base(token) not in body else fresh.get(token)

        self.memory = self.memory.renamed(renamed)
        self.pointers = {name: _renamed(target, fresh) for name, target in self.pointers.items()}


def _base(token: str) -> str:
    """The value whose bytes a token is, in whatever round."""
    return token.partition(EARLIER)[0].partition(ENDED)[0]


def _renamed(target: Target, fresh: Mapping[str, str]) -> Target:
    pieces = tuple(Piece(fresh.get(token, token), start, length) for token, start, length in target.content)
    return Target(target.region, pieces)


def shown(token: str) -> str:
    """A token as messages show it."""
    base = _base(token)
    return base if base == token else f"{base} of an earlier round"
