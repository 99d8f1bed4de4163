"""PyTorch's memory snapshots: read without executing anything, and replayed as a packing problem."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.cuda._memory_viz as viz

from sublet.base.errors import ModelError
from sublet.checker.external.files import packing_problem
from sublet.integrations.torch.safe_pickle import ACTIONS, safe_unpickle
from sublet.integrations.torch.snapshot import parse_snapshot, read_snapshot
from sublet.packing import pack
from sublet.plan.export.viewers import snapshot
from sublet.planning.pipeline import plan_memory
from tests.support.command_line import Cli
from tests.support.programs import program

MIB = 1 << 20


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def event(action: str, addr: int, size: int, line: int = 1) -> dict[str, Any]:
    frames = [{"filename": "train.py", "name": "step", "line": line}]
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 0, "frames": frames}


def block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": []}


def segment(address: int, *blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    total = sum(one["size"] for one in blocks)
    active = sum(one["size"] for one in blocks if one["state"] == "active_allocated")
    return {
        "device": device, "address": address, "total_size": total, "allocated_size": active, "active_size": active,
        "requested_size": active, "stream": 0, "segment_type": "large", "frames": [], "blocks": list(blocks),
    }  # fmt: skip


def recorded() -> dict[str, Any]:
    """An allocator that fragments: it frees every other block, then finds no room for a larger one."""
    base = 7 * MIB
    events = [event("segment_alloc", base, 4 * MIB)]
    events += [event("alloc", base + i * MIB, MIB, i) for i in range(4)]
    for i in (0, 2):
        events += [event(action, base + i * MIB, MIB) for action in ("free_requested", "free_completed")]
    events += [event("segment_alloc", 64 * MIB, 2 * MIB), event("alloc", 64 * MIB, 2 * MIB, 9)]
    inactive = "inactive"
    first = segment(
        base, *(block(base + i * MIB, MIB, inactive if i in (0, 2) else "active_allocated") for i in range(4))
    )
    return {"segments": [first, segment(64 * MIB, block(64 * MIB, 2 * MIB))], "device_traces": [events]}


def test_pytorch_reads_what_is_written_here() -> None:
    assert "cudaMalloc" in viz.trace(recorded())
    assert viz.segsum(recorded())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_replayed(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(recorded(), protocol=protocol))
    (device,) = read_snapshot(path)
    assert (device.reserved_bytes, device.allocated_bytes, device.findings) == (6 * MIB, 4 * MIB, ())
    assert len(device.problem.buffers) == 5
    assert device.problem.buffers[4].id == "4 step (train.py:9)"
    assert pack(device.problem).packing.arena_bytes == 4 * MIB
    assert packing_problem(path) == device.problem


def test_what_lived_before_the_first_event() -> None:
    base = MIB
    events = [event("free_requested", base, 512), event("free_completed", base, 512), event("alloc", base, 1024)]
    record = {"segments": [segment(base, block(base, 1024), block(base + 1024, 512))], "device_traces": [[], events]}
    record["segments"][0]["device"] = 1
    (device,) = parse_snapshot(record, "s", 10_000)
    lives = {(b.size, b.lower, b.upper) for b in device.problem.buffers}
    assert device.device == 1
    assert lives == {(512, 0, 2), (1024, 3, 4), (512, 0, 4)}
    assert device.reserved_bytes == 1536


@pytest.mark.parametrize("further", [0, 512])
def test_allocations_over_another_are_told(cli: Cli, tmp_path: Path, further: int) -> None:
    record = recorded()
    record["device_traces"][0][-1]["addr"] = 8 * MIB + further
    record["segments"].pop()
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(record))
    status, out, _ = cli("check", path)
    assert status == 1
    assert "while both are alive" in out


def test_the_command_tells_what_a_plan_would_need(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(recorded()))
    status, out, _ = cli("check", path, "--html", tmp_path / "map.html")
    assert status == 0
    assert "reserved at its peak" in out
    assert "2 MiB less than was reserved, if the lifetimes are known before the run" in out
    found = json.loads(cli("check", path, "--json")[1])["devices"][0]
    assert (found["reserved_bytes"], found["allocated_bytes"], found["plan_bytes"]) == (6 * MIB, 4 * MIB, 4 * MIB)
    assert cli("pack", path)[0] == 0


@pytest.mark.parametrize("seed", range(4))
def test_what_sublet_writes_is_read_back(seed: int) -> None:
    plan = replace(plan_memory(program(random.Random(seed), 16)), outside=())
    raw = snapshot(plan)
    (device,) = parse_snapshot(safe_unpickle(raw, "s"), "s", len(raw))
    assert device.findings == ()
    assert (device.allocated_bytes, device.reserved_bytes) == (plan.peak.nbytes, plan.arena_bytes)


@pytest.mark.parametrize("suffix", [".pickle", ".json"])
@pytest.mark.parametrize("form", ["snapshot", "events", "segments", "list of segments"])
def test_all_forms_of_a_snapshot(cli: Cli, tmp_path: Path, form: str, suffix: str) -> None:
    """`_dump_snapshot` writes events and segments, and `torch.cuda.memory_snapshot()` returns a list of segments."""
    whole, path = recorded(), tmp_path / f"snapshot{suffix}"
    record = {
        "snapshot": whole,
        "events": {"device_traces": whole["device_traces"]},
        "segments": {"segments": whole["segments"]},
        "list of segments": whole["segments"],
    }[form]
    path.write_bytes(json.dumps(record).encode() if suffix == ".json" else pickle.dumps(record))
    status, out, err = cli("check", path, "--json")
    assert (status, err) == (0, "")
    (device,) = json.loads(out)["devices"]
    held = "segments" in form
    assert (device["allocations"], device["allocated_bytes"]) == ((3 if held else 5), 4 * MIB)
    assert device["reserved_bytes"] == (0 if form == "events" else 6 * MIB)
    assert cli("pack", path)[0] == 0


def test_segments_of_several_devices(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    segments = [segment(MIB * i, block(MIB * i, 512 * (1 + i)), device=i % 3) for i in range(6)]
    path.write_text(json.dumps(segments))
    devices = json.loads(cli("check", path, "--json")[1])["devices"]
    assert [(one["device"], one["allocated_bytes"]) for one in devices] == [(0, 5 * 512), (1, 7 * 512), (2, 9 * 512)]
    path.write_text(json.dumps([{**segments[0], "blocks": [{"size": -1}]}]))
    status, _, err = cli("check", path)
    assert (status, "size must be an integer from 0" in err) == (2, True)


class Hostile:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_hostile_pickle_executes_nothing(cli: Cli, tmp_path: Path, protocol: int) -> None:
    path, made = tmp_path / "snapshot.pickle", tmp_path / "made"
    record = {**recorded(), "allocator_settings": Hostile(made)}
    path.write_bytes(pickle.dumps(record, protocol=protocol))
    status, _, err = cli("check", path)
    assert (status, made.exists()) == (2, False)
    assert "imports or calls an object" in err
    assert "which Sublet never executes" in err
    assert cli("pack", path)[0] == 2


def test_no_opcode_that_makes_objects_is_known() -> None:
    known = {opcode.name for opcode in pickletools.opcodes if opcode.code.encode("latin-1")[0] in ACTIONS}
    assert not known & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID"}
    for opcode in pickletools.opcodes:
        code = opcode.code.encode("latin-1")
        if code[0] not in ACTIONS and opcode.name != "STOP":
            with pytest.raises(ModelError, match=opcode.name):
                safe_unpickle(b"\x80\x04" + code + b"os\nsystem\n.", "s")


def laughs() -> bytes:
    """A list of a thousand times a list of a thousand times ... one event, in a few kilobytes."""
    thing: Any = event("alloc", 0, 1)
    for _ in range(2):
        thing = [thing] * 5000
    return pickle.dumps({"segments": [], "device_traces": thing}, protocol=4)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "not a pickle of protocol"),
        (b"\x80\x00.", "not a pickle of protocol 2 to 5"),
        (b"(dp0\n.", "not a pickle of protocol"),
        (b"\x80\x04.", "empty or unfinished stack"),
        (b"\x80\x04(.", "empty or unfinished stack"),
        (b"\x80\x04}", "truncated"),
        (b"\x80\x04X\xff\xff\xff\xffa.", "a length in the pickle is wrong"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"a.", "a length in the pickle is wrong"),
        (b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".", "addresses and sizes have at most"),
        (b"\x80\x04\x8b\xff\xff\xff\xff.", "an integer of -1 bytes"),
        (b"\x80\x04h\x07.", "refers to memo entry 7"),
        (b"\x80\x04e.", "pops a list without a mark"),
        (b"\x80\x04a.", "from an empty stack"),
        (b"\x80\x04}K\x01K\x02s.", "a key is a int"),
        (b"\x80\x04}}K\x02s.", "a key is a dict"),
        (b"\x80\x04NK\x01a.", "not a list"),
        (b"\x80\x04]K\x01K\x02s.", "not a dict"),
        (b"\x80\x04X\x01\x00\x00\x00\xff.", "not UTF-8"),
        (b"\x80\x04\x94.", "from an empty stack"),
        (b"\x80\x04N.", "the snapshot is a NoneType"),
        (pickle.dumps({}), "has no allocations"),
        (pickle.dumps({"device_traces": [3]}), "expected a list"),
        (pickle.dumps({"device_traces": [[{"addr": 1}]]}), "an event has no action"),
        (pickle.dumps({"device_traces": [[event("alloc", -1, 1)]]}), "addr must be an integer from 0"),
        (pickle.dumps({"device_traces": [[event("alloc", 1, 1 << 80)]]}), "size must be an integer from 0"),
        (pickle.dumps({"segments": [segment(0, block(0, 1), device=1 << 40)]}), "device 1099511627776 is beyond"),
        (laughs(), "more than its bytes can hold"),
        (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", "a segment is a list"),
        (b"\x80\x04)" + b"\x85" * 100_000 + b".", "the snapshot is a tuple"),
    ],
)
def test_what_is_no_snapshot_is_one_clear_error(tmp_path: Path, raw: bytes, told: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=told):
        read_snapshot(path)


def test_bytes_flipped_and_cut_off() -> None:
    """Nothing but our own error comes out, and what is read is as long as the file at most."""
    whole = pickle.dumps(recorded(), protocol=4)
    rng = random.Random(0)
    for _ in range(3000):
        raw = bytearray(whole[: rng.randrange(2, len(whole))] if rng.random() < 0.2 else whole)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(2, len(raw))] = rng.randrange(256)
        try:
            parse_snapshot(safe_unpickle(bytes(raw), "s"), "s", len(raw))
        except ModelError:
            continue


def test_it_reads_what_pickle_reads() -> None:
    for thing in ({"a": [1, -1, 1 << 40, -(1 << 100), 1.5, None, True, (1,), (1, 2, 3, 4), b"x", "ü" * 300, {}, []]},
                  {"b": [["x"] * 3, ("y",) * 2, list(range(2000))]}):  # fmt: skip
        for protocol in (2, 3, 4, 5):
            if protocol > 2 or "a" not in thing:
                assert safe_unpickle(pickle.dumps(thing, protocol=protocol), "s") == thing
