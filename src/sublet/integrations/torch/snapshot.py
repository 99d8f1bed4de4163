"""Replay of a PyTorch memory snapshot: lifetimes of allocations, reserved bytes, and a packing problem.

`torch.cuda.memory._dump_snapshot` writes a snapshot: for each device the allocator's events in order, and the segments
held at the end. `torch.cuda.memory_snapshot()` returns a list of these segments alone. A file holds either as JSON, or
as a pickle, which is never executed. An event is a step of time. An allocation from before the first event is live from
step 0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

from sublet.base.errors import Finding, ModelError, ProblemError
from sublet.base.files import parse_json
from sublet.base.ranges import LiveCurve
from sublet.integrations.torch.safe_pickle import MAX_BYTES, safe_unpickle
from sublet.packing.problem import MAX_SIZE, Buffer, Packing, Problem
from sublet.packing.validate import find_violations

ALIGNMENT = 512
"""Bytes of PyTorch's rounding of block sizes."""
MAX_DEVICES = 4096
"""Limit of device numbers. Beyond, the snapshot is refused."""
TAKES, GIVES_BACK = ("alloc",), ("free_completed", "free")
GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class Snapshot:
    """A device of a snapshot.

    problem    a buffer for each allocation, named by number and innermost recorded stack frame
    packing    the allocator's offset of each buffer, counted from the lowest address
    allocated_bytes   the most bytes allocated at the same time
    reserved_bytes    the most bytes held by the allocator at the same time
    findings   allocations that overlap another live allocation
    """

    device: int
    problem: Problem
    packing: Packing
    allocated_bytes: int
    reserved_bytes: int
    findings: tuple[Finding, ...]


def read_snapshot(path: Path) -> tuple[Snapshot, ...]:
    """Return all devices with allocations in a pickle or JSON. Raises ModelError for an invalid or hostile file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"{path}: {path.stat().st_size} bytes; a snapshot of more than 1 GiB is not read")
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    is_json = path.suffix.lower() == ".json"
    record = parse_json(raw, path.name, ModelError) if is_json else safe_unpickle(raw, path.name)
    return parse_snapshot(record, path.name, len(raw))


def is_snapshot_json(record: Any) -> bool:
    """Return True if decoded JSON is a snapshot: an object with the allocator's events, or with or of segments."""
    if isinstance(record, dict) and isinstance(record.get("device_traces"), list):
        return True
    segments = record.get("segments") if isinstance(record, dict) else record
    first = segments[0] if isinstance(segments, list) and segments else None
    return isinstance(first, dict) and {"address", "blocks"} <= first.keys()


def parse_snapshot(record: Any, where: str, max_objects: int) -> tuple[Snapshot, ...]:
    """Return the devices in a decoded snapshot, or list of segments.

    Raises ModelError if the snapshot has more than `max_objects` elements: a small file can repeat an object.
    """
    reader = _SnapshotReader(where, max_objects)
    whole = {"segments": record} if isinstance(record, list) else reader.mapping(record, "the snapshot")
    traces = reader.array(whole.get("device_traces", []), "device_traces")
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for one in reader.array(whole.get("segments", []), "segments"):
        segment = reader.mapping(one, "a segment")
        segments.setdefault(reader.integer(segment, "device"), []).append(segment)
    devices = []
    for device in sorted({*range(len(traces)), *segments}):
        events = reader.array(traces[device], f"device_traces[{device}]") if device < len(traces) else []
        replay = _AllocatorReplay(reader, device)
        for event in events:
            replay.apply_event(reader.mapping(event, "an event"))
        replay.finish(segments.get(device, []))
        if replay.buffers:
            devices.append(replay.to_snapshot(where))
    if not devices:
        raise ModelError(f"{where} has no allocations: torch.cuda.memory._record_memory_history() records them")
    return tuple(devices)


class _SnapshotReader:
    """Typed access to decoded data, with a limit: a small file can repeat an object."""

    def __init__(self, where: str, max_objects: int) -> None:
        self._where, self._left, self._most = where, max(max_objects, 1), max_objects

    def error(self, what: str) -> ModelError:
        """Return the error with the name of the file."""
        return ModelError(f"{self._where}: {what}")

    def count_access(self) -> None:
        """Count an access. Raises ModelError beyond the limit."""
        self._left -= 1
        if self._left < 0:
            raise self.error(
                f"lists more than {self._most} objects, more than its bytes can hold: some repeat by reference"
            )

    def mapping(self, raw: Any, role: str) -> Mapping[str, Any]:
        """Return `raw` as a dict. Raises ModelError otherwise."""
        self.count_access()
        if not isinstance(raw, dict):
            raise self.error(f"{role} is a {type(raw).__name__}; expected a dict")
        return raw

    def array(self, raw: Any, role: str) -> list[Any]:
        """Return `raw` as a list. Raises ModelError otherwise."""
        self.count_access()
        if not isinstance(raw, list):
            raise self.error(f"{role} is a {type(raw).__name__}; expected a list")
        return raw

    def integer(self, record: Mapping[str, Any], key: str, default: int = 0) -> int:
        """Return an integer entry from 0 to 2^62, `default` if missing. Raises ModelError otherwise."""
        value = record.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
            raise self.error(f"{key} must be an integer from 0 to 2^62")
        if key == "device" and value >= MAX_DEVICES:
            raise self.error(f"device {value} is beyond {MAX_DEVICES}")
        return value


class _AllocatorReplay:
    """State of a device's allocator, updated event by event."""

    def __init__(self, reader: _SnapshotReader, device: int) -> None:
        self._reader, self._device = reader, device
        self._live: dict[int, int] = {}
        self._step = 0
        self._reserved: list[int] = [0]
        self.buffers: list[tuple[int, int, int, int, str]] = []  # (address, size, begin, end, label)

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """Apply an allocation, a free, or a change of the reserved bytes. Further kinds of events only take time."""
        action = event.get("action")
        if not isinstance(action, str):
            raise self._reader.error("an event has no action")
        address = self._reader.integer(event, "addr" if "addr" in event else "device_free")
        size = self._reader.integer(event, "size")
        self._step += 1
        if action in TAKES:
            self._live[address] = len(self.buffers)
            self.buffers.append((address, size, self._step, -1, _label(event)))
        elif action in GIVES_BACK and not self._end_allocation(address):
            self.buffers.append((address, size, 0, self._step, "allocated before the first event"))
        elif action in GROWS or action in SHRINKS:
            self._reserved.append(self._reserved[-1] + (size if action in GROWS else -size))

    def _end_allocation(self, address: int) -> bool:
        """End the live allocation at `address`. Return False if no allocation is live at the address."""
        number = self._live.pop(address, None)
        if number is None:
            return False
        where, size, begin, _, label = self.buffers[number]
        self.buffers[number] = (where, size, begin, self._step, label)
        return True

    def finish(self, segments: list[Mapping[str, Any]]) -> None:
        """Add the allocations and reserved bytes in the final segments.

        An allocation in a segment without an event is live from step 0. The reserved bytes before the first event
        follow from the final bytes, minus all changes.
        """
        self._step += 1
        held = 0
        for segment in segments:
            held += self._reader.integer(segment, "total_size")
            address = self._reader.integer(segment, "address")
            for block in self._reader.array(segment.get("blocks", []), "blocks"):
                block = self._reader.mapping(block, "a block")
                begin = self._reader.integer(block, "address", address)
                size = self._reader.integer(block, "size")
                if block.get("state") == "active_allocated" and begin not in self._live and size:
                    self._live[begin] = len(self.buffers)
                    requested = self._reader.integer(block, "requested_size", size) or size
                    self.buffers.append((begin, requested, 0, -1, _label(block) or "allocated before the first event"))
                address = begin + size
        before = held - self._reserved[-1]
        self._peak = max([held, *(before + level for level in self._reserved)])

    def to_snapshot(self, where: str) -> Snapshot:
        """Return the device as a packing problem with the allocator's own packing."""
        addresses = [address for address, *_ in self.buffers]
        ends = [address + size for address, size, *_ in self.buffers]
        alignment = _common_alignment(addresses)
        buffers = []
        for number, (_, size, begin, end, label) in enumerate(self.buffers):
            until = self._step if end < 0 else end
            name = f"{number} {label}" if label else str(number)
            buffers.append(Buffer(name, size, begin, max(until, begin + 1), alignment, label=label))
        problem = Problem(tuple(buffers), name=f"{where}, device {self._device}")
        base = min(addresses)
        packing = Packing(tuple(address - base for address in addresses), max(ends) - base, "PyTorch")
        allocated = LiveCurve.from_sizes((((buffer.lower, buffer.upper),), buffer.size) for buffer in buffers)
        findings = tuple(find_violations(problem, packing))
        return Snapshot(self._device, problem, packing, allocated.peak_bytes, max(self._peak, 0), findings)


def _common_alignment(addresses: list[int]) -> int:
    """Return the greatest common divisor of all addresses and PyTorch's rounding of 512 bytes."""
    return gcd(ALIGNMENT, *addresses)


def _label(record: Mapping[str, Any]) -> str:
    """Return the innermost frame with a file name and a line, of the first 64 frames; "" if no frame has both."""
    frames = record.get("frames")
    for frame in frames[:64] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
            if isinstance(file, str) and file and not file.startswith("??") and isinstance(line, int):
                return f"{name if isinstance(name, str) else ''} ({file[-120:]}:{line})"[:200]
    return ""


def read_problem(path: Path) -> Problem:
    """Return the allocations of a snapshot's only device as a packing problem.

    Raises ProblemError for a snapshot of several devices, ModelError for an invalid or hostile file.
    """
    devices = read_snapshot(path)
    if len(devices) > 1:
        raise ProblemError(f"{path} has {len(devices)} devices, each a separate problem (`sublet check` replays all)")
    return devices[0].problem
