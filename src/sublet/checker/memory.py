"""Abstract memory: the content of every storage, as read and written by the replay.

A *token* is the name of the value that owns the bytes. Every storage has a track: segments of bytes in order of
address, each with a range of bytes of one token. Bytes outside of all segments have never been written.

Branches and loops need one more operation: `meet_memories`, the facts common to two paths. Writes and meets only
replace facts by fixed facts or by unknown, so the fixpoint of a loop is reached after one iteration.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from sublet.plan import Region


class TokenRange(NamedTuple):
    """Bytes [start, start + length) of a token."""

    token: str
    start: int
    length: int


Content = tuple[TokenRange, ...]
"""The bytes of a value as pieces of tokens, in order."""


class MemorySegment(NamedTuple):
    """Addresses [begin, end) with bytes of `token`; byte 0 of the token would lie at address `base`.

    A token of None means unknown bytes, and `writer` is the reason; otherwise `writer` names the writer of the bytes.
    """

    begin: int
    end: int
    token: str | None
    base: int
    writer: str


Track = list[MemorySegment]
"""The segments of one storage, sorted and disjoint. Memories share tracks, and change only unshared tracks in place."""


_BEGIN = itemgetter(0)
_UNWRITTEN = "not written on every path"


class AbstractMemory:
    """The content of every storage at one moment, with copy-on-write tracks."""

    def __init__(self, tracks: dict[str, Track] | None = None) -> None:
        self.tracks: dict[str, Track] = tracks if tracks is not None else {}
        self._own: set[str] = set()  # storages with an unshared track

    def copy(self) -> AbstractMemory:
        """Return a copy that shares all tracks."""
        return AbstractMemory(dict(self.share_tracks()))

    def share_tracks(self) -> Mapping[str, Track]:
        """Return the tracks, and stop changing them in place."""
        self._own.clear()
        return self.tracks

    def _replace_segments(self, storage: str, low: int, high: int, fresh: Track) -> None:
        """Replace the segments at positions [low, high) of a track."""
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
            fresh.append(MemorySegment(begin, begin + length, token, begin - start, writer))
            begin += length
        if fresh:
            self.replace_range(storage, fresh[0].begin, begin, fresh)

    def replace_range(self, storage: str, begin: int, end: int, fresh: Track) -> None:
        """Replace the content of addresses [begin, end) by the segments `fresh`."""
        track = self.tracks.get(storage, [])
        low, high = _overlapped_positions(track, begin, end)
        left: Track = []
        right: Track = []
        if low < high:
            first, last = track[low], track[high - 1]
            left = [first._replace(end=begin)] if first.begin < begin else []
            right = [last._replace(begin=end)] if last.end > end else []
        self._replace_segments(storage, low, high, [*left, *fresh, *right])

    def forget(self, region: Region, writer: str) -> None:
        """Make the known bytes of a region unknown; `writer` is the reason."""
        track = self.tracks.get(region.storage, [])
        low, high = _overlapped_positions(track, region.offset, region.end)
        if low == high:
            return
        first, last = track[low], track[high - 1]
        left = [first._replace(end=region.offset)] if first.begin < region.offset else []
        right = [last._replace(begin=region.end)] if last.end > region.end else []
        unknown = MemorySegment(region.offset, region.end, None, 0, writer)
        self._replace_segments(region.storage, low, high, [*left, unknown, *right])

    def mismatches(self, storage: str, begin: int, content: Content) -> Iterator[MemorySegment]:
        """Yield the segments from address `begin` that differ from `content`."""
        for token, start, length in content:
            for segment in self._segments_with_gaps(storage, begin, begin + length):
                if segment.token != token or segment.base != begin - start:
                    yield segment
            begin += length

    def _segments_with_gaps(self, storage: str, begin: int, end: int) -> Iterator[MemorySegment]:
        """Yield the segments of [begin, end), with unwritten gaps as unknown segments."""
        track = self.tracks.get(storage, [])
        low, high = _overlapped_positions(track, begin, end)
        for segment in track[low:high]:
            if begin < segment.begin:
                yield MemorySegment(begin, segment.begin, None, 0, _UNWRITTEN)
            yield segment._replace(begin=max(begin, segment.begin), end=min(end, segment.end))
            begin = segment.end
        if begin < end:
            yield MemorySegment(begin, end, None, 0, _UNWRITTEN)

    def segments_within(self, storage: str, begin: int, end: int) -> Iterator[MemorySegment]:
        """Yield the segments of [begin, end), without the gaps between them."""
        track = self.tracks.get(storage, [])
        low, high = _overlapped_positions(track, begin, end)
        for segment in track[low:high]:
            yield segment._replace(begin=max(begin, segment.begin), end=min(end, segment.end))

    def covered_bytes(self) -> int:
        """Return the number of bytes covered by segments."""
        return sum(segment.end - segment.begin for track in self.tracks.values() for segment in track)

    def with_renamed_tokens(self, rename: Callable[[str | None], str | None]) -> AbstractMemory:
        """Return the memory with renamed tokens; a new name of None makes the bytes unknown."""
        tracks = {}
        for storage, track in self.share_tracks().items():
            fresh = [_rename_segment(segment, rename(segment.token)) for segment in track]
            tracks[storage] = track if fresh == track else fresh
        return AbstractMemory(tracks)

    def known_bytes(self) -> int:
        """Return the number of bytes with known content."""
        return sum(
            segment.end - segment.begin
            for track in self.tracks.values()
            for segment in track
            if segment.token is not None
        )


def _rename_segment(segment: MemorySegment, token: str | None) -> MemorySegment:
    """Return a segment with another token; None makes the bytes unknown, with the former token as the reason."""
    if token is None and segment.token is not None:
        return segment._replace(token=None, writer=f"%{segment.token} of an earlier iteration")
    return segment._replace(token=token)


def meet_memories(one: AbstractMemory, other: AbstractMemory) -> AbstractMemory:
    """Return the facts common to both memories."""
    tracks = {}
    ours, theirs = one.share_tracks(), other.share_tracks()
    for storage in {**ours, **theirs}:
        left, right = ours.get(storage, []), theirs.get(storage, [])
        tracks[storage] = left if left is right else _meet_tracks(left, right)
    return AbstractMemory(tracks)


def _meet_tracks(left: Track, right: Track) -> Track:
    """Return the meet of two tracks; a common prefix and suffix are reused."""
    prefix = _common_prefix(left, right)
    suffix = _common_suffix(left, right, prefix)
    middle: Track = []
    for segment in _intersect_tracks(left[prefix : len(left) - suffix], right[prefix : len(right) - suffix]):
        previous = middle[-1] if middle else None
        if previous and previous.end == segment.begin and previous[2:] == segment[2:]:
            middle[-1] = previous._replace(end=segment.end)
        else:
            middle.append(segment)
    return left[:prefix] + middle + left[len(left) - suffix :]


def _intersect_tracks(left: Track, right: Track) -> Iterator[MemorySegment]:
    """Sweep over both tracks by address; yield segments for bytes covered in both, unknown where the tracks differ."""
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = left[i], right[j]
        begin, end = max(a.begin, b.begin), min(a.end, b.end)
        if begin < end:
            same = a.token == b.token and a.base == b.base
            yield MemorySegment(begin, end, *a[2:]) if same else _unknown_segment(begin, end, a, b)
        if a.end <= b.end:
            i += 1
        if b.end <= a.end:
            j += 1


def _unknown_segment(begin: int, end: int, a: MemorySegment, b: MemorySegment) -> MemorySegment:
    """Return an unknown segment for different facts, with the reason."""
    if a.token is None or b.token is None:
        return MemorySegment(begin, end, None, 0, (a if a.token is None else b).writer)
    return MemorySegment(begin, end, None, 0, f"%{a.token} on one path, %{b.token} on another")


def _overlapped_positions(track: Track, begin: int, end: int) -> tuple[int, int]:
    """Return the positions [low, high) of the segments that overlap addresses [begin, end)."""
    low = bisect_left(track, begin, key=_BEGIN)
    if low and track[low - 1].end > begin:
        low -= 1
    return low, bisect_left(track, end, lo=low, key=_BEGIN)


def _common_prefix(left: Track, right: Track, chunk: int = 64) -> int:
    """Return the length of the common prefix, rounded down to whole chunks (compared at once)."""
    length = min(len(left), len(right))
    same = 0
    while same + chunk <= length and left[same : same + chunk] == right[same : same + chunk]:
        same += chunk
    return same


def _common_suffix(left: Track, right: Track, prefix: int, chunk: int = 64) -> int:
    """Return the length of the common suffix after `prefix`, rounded down to whole chunks."""
    length = min(len(left), len(right)) - prefix
    same = 0
    while same + chunk <= length:
        stop = (len(left) - same, len(right) - same)
        if left[stop[0] - chunk : stop[0]] != right[stop[1] - chunk : stop[1]]:
            break
        same += chunk
    return same
