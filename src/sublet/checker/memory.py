"""What lies where: the abstract memory that the replay reads and writes.

A *token* is the name of the value whose bytes they are. Every storage is a track: segments of bytes
in order of address, each saying which bytes of which token lie there. What no segment covers has
never been written.

Branches and loops need one more operation: `meet`, what two paths agree on. Writing and meeting only
ever replace facts by fixed facts or by nothing, so the fixpoint of a loop is reached after one round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from sublet.plan import Region


class Piece(NamedTuple):
    """Bytes [start, start + length) of a token."""

    token: str
    start: int
    length: int


Content = tuple[Piece, ...]
"""What the bytes of a value are, in order."""


class Segment(NamedTuple):
    """Addresses [begin, end) hold bytes of `token`, whose byte 0 would lie at address `base`.

    A token of None means unknown bytes; `writer` then says why, else it says who wrote them.
    """

    begin: int
    end: int
    token: str | None
    base: int
    writer: str


Track = list[Segment]
"""The segments of one storage, sorted and disjoint. Memories share them; what no other has is changed in place."""


_BEGIN = itemgetter(0)
_UNWRITTEN = "never written, or not by every path"


class Memory:
    """The content of every storage at one moment."""

    def __init__(self, tracks: dict[str, Track] | None = None) -> None:
        self.tracks: dict[str, Track] = tracks if tracks is not None else {}
        self._own: set[str] = set()  # storages with a track that no other memory shares

    def copy(self) -> Memory:
        return Memory(dict(self.shared()))

    def shared(self) -> Mapping[str, Track]:
        """Its tracks, none of which it will change in place."""
        self._own.clear()
        return self.tracks

    def _put(self, storage: str, low: int, high: int, fresh: Track) -> None:
        """Let these segments stand in the place of those at the positions [low, high)."""
        if storage in self._own:
            self.tracks[storage][low:high] = fresh
            return
        track = self.tracks.get(storage, [])
        self.tracks[storage] = [*track[:low], *fresh, *track[high:]]
        self._own.add(storage)

    def write(self, storage: str, begin: int, content: Content, writer: str) -> None:
        """Put the bytes of `content` at address `begin` onwards."""
        fresh: Track = []
        for token, start, length in content:
            fresh.append(Segment(begin, begin + length, token, begin - start, writer))
            begin += length
        if fresh:
            self.lay(storage, fresh[0].begin, begin, fresh)

    def lay(self, storage: str, begin: int, end: int, fresh: Track) -> None:
        """Let only these segments lie between two addresses."""
        track = self.tracks.get(storage, [])
        low, high = _range(track, begin, end)
        left: Track = []
        right: Track = []
        if low < high:
            first, last = track[low], track[high - 1]
            left = [first._replace(end=begin)] if first.begin < begin else []
            right = [last._replace(begin=end)] if last.end > end else []
        self._put(storage, low, high, [*left, *fresh, *right])

    def forget(self, region: Region, writer: str) -> None:
        """Let nothing be known of these bytes; `writer` says why."""
        track = self.tracks.get(region.storage, [])
        low, high = _range(track, region.offset, region.end)
        if low == high:
            return
        first, last = track[low], track[high - 1]
        left = [first._replace(end=region.offset)] if first.begin < region.offset else []
        right = [last._replace(begin=region.end)] if last.end > region.end else []
        unknown = Segment(region.offset, region.end, None, 0, writer)
        self._put(region.storage, low, high, [*left, unknown, *right])

    def mismatches(self, storage: str, begin: int, content: Content) -> Iterator[Segment]:
        """The bytes from address `begin` that are not those of `content`, as what they are instead."""
        for token, start, length in content:
            for found in self._found(storage, begin, begin + length):
                if found.token != token or found.base != begin - start:
                    yield found
            begin += length

    def _found(self, storage: str, begin: int, end: int) -> Iterator[Segment]:
        track = self.tracks.get(storage, [])
        low, high = _range(track, begin, end)
        for segment in track[low:high]:
            if begin < segment.begin:
                yield Segment(begin, segment.begin, None, 0, _UNWRITTEN)
            yield segment._replace(begin=max(begin, segment.begin), end=min(end, segment.end))
            begin = segment.end
        if begin < end:
            yield Segment(begin, end, None, 0, _UNWRITTEN)

    def within(self, storage: str, begin: int, end: int) -> Iterator[Segment]:
        """What the segments say of [begin, end), and nothing of the bytes between them."""
        track = self.tracks.get(storage, [])
        low, high = _range(track, begin, end)
        for segment in track[low:high]:
            yield segment._replace(begin=max(begin, segment.begin), end=min(end, segment.end))

    def covered_bytes(self) -> int:
        """How many bytes any segment covers."""
        return sum(segment.end - segment.begin for track in self.tracks.values() for segment in track)

    def renamed(self, rename: Callable[[str | None], str | None]) -> Memory:
        """The memory with other names for its tokens; None for bytes that are forgotten."""
        tracks = {}
        for storage, track in self.shared().items():
            fresh = [_renamed(segment, rename(segment.token)) for segment in track]
            tracks[storage] = track if fresh == track else fresh
        return Memory(tracks)

    def known_bytes(self) -> int:
        """How many bytes hold something known."""
        return sum(
            segment.end - segment.begin
            for track in self.tracks.values()
            for segment in track
            if segment.token is not None
        )


def _renamed(segment: Segment, token: str | None) -> Segment:
    if token is None and segment.token is not None:
        return segment._replace(token=None, writer=f"%{segment.token} of an earlier round")
    return segment._replace(token=token)


def meet(one: Memory, other: Memory) -> Memory:
    """What both memories agree on."""
    tracks = {}
    ours, theirs = one.shared(), other.shared()
    for storage in {**ours, **theirs}:
        left, right = ours.get(storage, []), theirs.get(storage, [])
        tracks[storage] = left if left is right else _meet(left, right)
    return Memory(tracks)


def _meet(left: Track, right: Track) -> Track:
    prefix = _common(left, right)
    suffix = _common_end(left, right, prefix)
    middle: Track = []
    for segment in _agreed(left[prefix : len(left) - suffix], right[prefix : len(right) - suffix]):
        previous = middle[-1] if middle else None
        if previous and previous.end == segment.begin and previous[2:] == segment[2:]:
            middle[-1] = previous._replace(end=segment.end)
        else:
            middle.append(segment)
    return left[:prefix] + middle + left[len(left) - suffix :]


def _agreed(left: Track, right: Track) -> Iterator[Segment]:
    """Sweep over both tracks by address; yield what covers them in both, unknown where they differ."""
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = left[i], right[j]
        begin, end = max(a.begin, b.begin), min(a.end, b.end)
        if begin < end:
            same = a.token == b.token and a.base == b.base
            yield Segment(begin, end, *a[2:]) if same else _either(begin, end, a, b)
        if a.end <= b.end:
            i += 1
        if b.end <= a.end:
            j += 1


def _either(begin: int, end: int, a: Segment, b: Segment) -> Segment:
    if a.token is None or b.token is None:
        return Segment(begin, end, None, 0, (a if a.token is None else b).writer)
    return Segment(begin, end, None, 0, f"%{a.token} by one path, %{b.token} by another")


def _range(track: Track, begin: int, end: int) -> tuple[int, int]:
    """The positions [low, high) of the segments that overlap addresses [begin, end)."""
    low = bisect_left(track, begin, key=_BEGIN)
    if low and track[low - 1].end > begin:
        low -= 1
    return low, bisect_left(track, end, lo=low, key=_BEGIN)


def _common(left: Track, right: Track, chunk: int = 64) -> int:
    """Length of the common beginning, rounded down to whole chunks (compared in one go)."""
    length = min(len(left), len(right))
    same = 0
    while same + chunk <= length and left[same : same + chunk] == right[same : same + chunk]:
        same += chunk
    return same


def _common_end(left: Track, right: Track, prefix: int, chunk: int = 64) -> int:
    """Length of the common end after `prefix`, rounded down to whole chunks."""
    length = min(len(left), len(right)) - prefix
    same = 0
    while same + chunk <= length:
        stop = (len(left) - same, len(right) - same)
        if left[stop[0] - chunk : stop[0]] != right[stop[1] - chunk : stop[1]]:
            break
        same += chunk
    return same
