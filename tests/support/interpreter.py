"""Runs a program of the "test" dialect: with bytes of its own for every value, or in a plan's bytes.

Kernels mix the bytes of their operands, so that one wrong byte shows in the result. In a plan's
bytes they behave as badly as a real kernel may: what an output may overwrite in place is read
first, every other operand only after the outputs that overlap it are written.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import shake_128

import numpy as np

from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import max_trip_count
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import lookup
from sublet.plan import OPEN, POINTER, Context, MemoryPlan, Placement, Region, bound_storage_name
from sublet.plan.schedule import Schedule, happens_before, serial_schedule

ROUNDS = (0, 1, 2, 2, 3, 3, 4, 7)
"""How often loops run, as chance has it."""

OUTSIDE_BYTES = 8
"""Bytes that stand for a value that cannot be planned."""

Range = tuple[int, int]


class Diverged(Exception):
    """A run in a plan's bytes left its storages, named no arm, or did not end."""


def results_match(graph: Graph, schedule: Schedule, plan: MemoryPlan, rng: random.Random, tries: int = 4) -> bool:
    """Whether runs in the plan's bytes go right, for random inputs and random orders of the streams.

    Right means: every node in every round computes what it should, also where nobody reads the
    result, and at the end outputs, weights and what was updated are there. What updates something is run
    again in the same bytes, with other inputs, from the state and the weights that the runs before left.
    """
    return all(_run_matches(graph, schedule, plan, rng) for _ in range(tries))


def _run_matches(graph: Graph, schedule: Schedule, plan: MemoryPlan, rng: random.Random) -> bool:
    values = (*graph.inputs, *graph.weights)
    fed = {value.name: rng.randbytes(_size(value)) for value in values}
    salt = rng.randbytes(4)
    planned = PlannedBytes(graph, plan, fed, salt, rng)
    fresh: Sequence[Value] = values
    for _ in range((4 if plan.exchanged else 2) if graph.updates else 1):
        meant = OwnBytes(fed, salt)
        trace = Trace()
        _Run(meant, random.Random(0), trace).root(graph, serial_schedule(graph))
        try:
            planned.load(fresh)
            _Run(planned, rng, Trace(trace.seen)).root(graph, schedule)
            if any(planned.read(value) != meant.read(value) for value in graph.outputs):
                return False
            planned.exchange()
            if any(planned.read(value) != meant.read(value) for value in (*graph.weights, *graph.updated_values)):
                return False
        except (Diverged, KeyError):
            return False
        if not planned.read_only_intact():
            return False
        fresh = [value for value in graph.inputs if value not in graph.updated_values]
        fed |= {value.name: rng.randbytes(_size(value)) for value in fresh}
        fed |= {value.name: meant.read(value) for value in graph.updated_values}
    return True


class Trace:
    """What every node read or computed, each time it ran; compared with an earlier run's, if given."""

    def __init__(self, expected: Mapping[str, list[bytes]] | None = None) -> None:
        self.expected = expected
        self.seen: dict[str, list[bytes]] = {}

    def note(self, what: str, content: bytes, ranges: Sequence[Range] | None = None) -> None:
        """Record bytes; compare them, or only those in `ranges`. Raises Diverged when they differ."""
        times = self.seen.setdefault(what, [])
        times.append(content)
        if self.expected is None:
            return
        expected = self.expected.get(what, [])
        if len(expected) < len(times):
            raise Diverged(f"{what} runs too often")
        right = expected[len(times) - 1]
        if any(content[begin:end] != right[begin:end] for begin, end in ranges or [(0, len(right))]):
            raise Diverged(f"{what} goes wrong")


def kernel(node: Node, operands: Sequence[bytes], salt: bytes) -> list[bytes]:
    """The bytes of every output. `operands` are those of `node.uses`.

    `salt` changes what is computed from run to run, so that every branch and trip count comes up.
    """
    name = node.op.partition(".")[2]
    sizes = [0 if value is None else _size(value) for value in node.outputs]
    offset = int(str(node.attrs.get("offset", 0)))
    if name in ("reshape", "slice", "copy"):
        return [operands[0][offset : offset + sizes[0]]]
    if name == "split":
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [operands[0][start : start + size] for start, size in zip(starts, sizes, strict=True)]
    if name == "concat":
        return [b"".join(operands)]
    if name in ("choose", "below"):
        return [_scalar(node, name, operands, salt).to_bytes(sizes[0], "little", signed=True)]
    seed = b"|".join([salt, node.name.encode(), *operands])
    fresh = [shake_128(seed + bytes([i])).digest(size) for i, size in enumerate(sizes)]
    if name == "pad":
        fresh[0] = fresh[0][:offset] + operands[0] + fresh[0][offset + len(operands[0]) :]
    if name == "drop":
        fresh[0] = operands[0]
    return fresh


def _scalar(node: Node, name: str, operands: Sequence[bytes], salt: bytes) -> int:
    """`choose`: one of `count` indices from `low` on. `below`: whether the counter is under a small limit.

    The limit is the attribute `rounds`; or drawn, up to the attribute `most`, or out of ROUNDS.
    """
    drawn = shake_128(salt + node.name.encode() + operands[-1]).digest(1)[0]
    if name == "choose":
        return int(str(node.attrs["low"])) + drawn % int(str(node.attrs["count"]))
    limit = drawn % (int(str(node.attrs["most"])) + 1) if "most" in node.attrs else ROUNDS[drawn % len(ROUNDS)]
    return int(int.from_bytes(operands[0], "little") < int(str(node.attrs.get("rounds", limit))))


def _size(value: Value) -> int:
    return value.nbytes if value.plannable else OUTSIDE_BYTES


class OwnBytes:
    """Every value in bytes of its own: what the program means."""

    def __init__(self, content: Mapping[str, bytes], salt: bytes) -> None:
        self.content = dict(content)
        self.salt = salt

    def read(self, value: Value) -> bytes:
        return self.content[value.name]

    def write(self, value: Value, content: bytes) -> None:
        self.content[value.name] = content

    def assign(self, value: Value, content: bytes) -> None:
        self.write(value, content)

    def update(self, target: Value, content: bytes) -> None:
        self.write(target, content)

    def point(self, pairs: Sequence[tuple[Value, Value]]) -> None:
        """Every value has bytes of its own: nothing points anywhere."""

    def begin_loop(self, loop: str) -> None:
        """Every round is like any other."""

    def begin_round(self, loop: str, number: int) -> None:
        """See `begin_loop`."""

    def end_round(self, loop: str) -> None:
        """See `begin_loop`."""

    def end_loop(self, loop: str) -> None:
        """See `begin_loop`."""

    def end_arm(self, branch: str, way: int) -> None:
        """See `begin_loop`."""

    def apply(self, node: Node, trace: Trace) -> None:
        results = kernel(node, [self.read(value) for value in node.uses], self.salt)
        for value, result in zip(node.outputs, results, strict=True):
            if value is not None:
                trace.note(value.name, result)
                self.write(value, result)


class PlannedBytes:
    """Every value in its region of the plan's storages, which start out as random bytes."""

    def __init__(
        self, graph: Graph, plan: MemoryPlan, fed: Mapping[str, bytes], salt: bytes, rng: random.Random
    ) -> None:
        self.salt = salt
        self.rng = rng
        self.fed = fed
        self.pointers = {placement.value for placement in plan.placements if placement.how == POINTER}
        self.pointed: dict[str, Region] = {}
        self.context: Context = ()
        self.copy: list[int] = []
        self.round: dict[str, int] = {}
        self.ways: dict[str, int] = {}
        self.rolled = {(record.loop, record.within): record for record in plan.rolled}
        self.heads = dict(_heads(graph, plan))
        self.placed: dict[str, list[Placement]] = {}
        for placement in plan.placements:
            self.placed.setdefault(placement.value, []).append(placement)
        self.storages = {storage.name: bytearray(rng.randbytes(storage.nbytes)) for storage in plan.storages}
        updated = {bound_storage_name(value.name) for value in graph.updated_values}
        self.read_only = [s.name for s in plan.storages if s.kind in ("weight", "input") and s.name not in updated]
        self.outside: dict[str, bytes] = {}
        self.cycles = [[bound_storage_name(name) for name in cycle] for cycle in plan.exchanged]

    def exchange(self) -> None:
        """The run has ended: in each cycle the memory of the next becomes one's own."""
        for cycle in self.cycles:
            blocks = [self.storages[name] for name in cycle]
            self.storages.update(zip(cycle, [*blocks[1:], blocks[0]], strict=True))

    def update(self, target: Value, content: bytes) -> None:
        """The update of a value, in the memory that will be its own."""
        if not target.nbytes:
            return
        region = self.region(target.name)
        for cycle in self.cycles:
            if region.storage in cycle:
                region = replace(region, storage=cycle[(cycle.index(region.storage) + 1) % len(cycle)])
        self._storage(region)[region.offset : region.end] = content

    def load(self, values: Sequence[Value]) -> None:
        for value in values:
            self.write(value, self.fed[value.name])

    def read_only_intact(self) -> bool:
        return all(self.storages[name] == self.fed[name.removeprefix("%")] for name in self.read_only)

    def read(self, value: Value) -> bytes:
        if not value.plannable:
            return self.outside[value.name]
        if value.nbytes == 0:
            return b""
        region = self.region(value.name)
        return bytes(self._storage(region)[region.offset : region.end])

    def write(self, value: Value, content: bytes, ranges: Sequence[Range] | None = None) -> None:
        """Write the bytes of a value, or only those in `ranges`."""
        if not value.plannable:
            self.outside[value.name] = content
        elif value.nbytes:
            region = self.region(value.name)
            storage = self._storage(region)
            for begin, end in ranges if ranges is not None else [(0, value.nbytes)]:
                storage[region.offset + begin : region.offset + end] = content[begin:end]

    def assign(self, value: Value, content: bytes) -> None:
        """Write what a move brings; a pointer has it already."""
        if value.name not in self.pointers:
            self.write(value, content)

    def point(self, pairs: Sequence[tuple[Value, Value]]) -> None:
        """Let pointers stand for what is assigned to them, all at once."""
        self.pointed |= {
            to.name: self.region(source.name) for source, to in pairs if to.name in self.pointers and source.nbytes
        }

    def begin_loop(self, loop: str) -> None:
        """The first round will be the first copy of the body."""
        self.copy.append(0)

    def begin_round(self, loop: str, number: int) -> None:
        """From here on values lie where they do in this round of the loop."""
        self.round[loop] = number
        if (loop, self.context) in self.rolled:
            self.context = (*self.context, (loop, self.copy[-1]))
            self.pointed |= self.heads.get(self.context, {})

    def end_round(self, loop: str) -> None:
        """Decide which copy comes next."""
        outer = self._around(loop)
        if (loop, outer) in self.rolled:
            self.copy[-1] = self.rolled[loop, outer].next_version(self.copy[-1], self.ways)
            self.context = outer

    def end_loop(self, loop: str) -> None:
        """The loop is over."""
        self.context = self._around(loop)
        self.ways[loop] = self.copy.pop()

    def end_arm(self, branch: str, way: int) -> None:
        self.ways[branch] = way

    def _around(self, loop: str) -> Context:
        return self.context[:-1] if self.context and self.context[-1][0] == loop else self.context

    def region(self, name: str) -> Region:
        """Where a value lies now. Raises KeyError for one that lies nowhere."""
        if name in self.pointers:
            return self.pointed[name]
        for placement in self.placed[name]:
            if any(self.context[: len(context)] == context for context in placement.copies or ((),)):
                further = sum(self.round[stride.loop] * stride.step for stride in placement.strides)
                return replace(placement.region, offset=placement.region.offset + further)
        raise KeyError(name)

    def _storage(self, region: Region) -> bytearray:
        storage = self.storages[region.storage]
        if not 0 <= region.offset <= region.end <= len(storage):
            raise Diverged(f"{region} is not there")
        return storage

    def apply(self, node: Node, trace: Trace) -> None:
        written = [[] if value is None else list(self._written(node, i)) for i, value in enumerate(node.outputs)]
        positions = [i for i, value in enumerate(node.inputs) if value is not None]
        results = kernel(node, [self._operand(node, position, written) for position in positions], self.salt)
        for value, result, ranges in zip(node.outputs, results, written, strict=True):
            if value is not None:
                if ranges or not value.nbytes:
                    trace.note(value.name, result, ranges)
                else:
                    trace.seen.setdefault(value.name, []).append(result)
                self.write(value, result, ranges)

    def _written(self, node: Node, position: int) -> Iterator[Range]:
        """The bytes of an output that the node writes: all but views and parts that are in place."""
        out = node.outputs[position]
        if out is None or out.nbytes == 0:
            return
        region, op = self.region(out.name), lookup(node.op)
        fresh = np.ones(out.nbytes, dtype=bool)
        for views, shares in ((True, op.views(node)), (False, op.parts(node))):
            for share in shares:
                operand = node.inputs[share.input]
                if share.output != position or operand is None or operand.nbytes == 0:
                    continue
                place = self.region(operand.name)
                start = region.offset + (-share.offset if views else share.offset)
                if (place.storage, place.offset) == (region.storage, start):
                    at = 0 if views else share.offset
                    fresh[at : at + (out.nbytes if views else operand.nbytes)] = False
        edges = np.flatnonzero(np.diff(np.concatenate(([0], fresh.view(np.int8), [0]))))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def _operand(self, node: Node, position: int, written: Sequence[Sequence[Range]]) -> bytes:
        """What the kernel reads as an operand: spoilt where an output is written over it and may not be."""
        value = node.inputs[position]
        assert value is not None
        content = bytearray(self.read(value))
        if value.nbytes == 0:
            return bytes(content)
        place = self.region(value.name)
        allowed = {(share.output, share.input) for share in lookup(node.op).inplace(node)}
        for i, (out, ranges) in enumerate(zip(node.outputs, written, strict=True)):
            region = None if out is None or not out.nbytes else self.region(out.name)
            if region is None or region.storage != place.storage or ((i, position) in allowed and region == place):
                continue
            for begin, end in ranges:
                low = max(region.offset + begin - place.offset, 0)
                high = min(region.offset + end - place.offset, value.nbytes)
                if low < high:
                    content[low:high] = self.rng.randbytes(high - low)
        return bytes(content)


def _heads(graph: Graph, plan: MemoryPlan) -> Iterator[tuple[Context, Mapping[str, Region]]]:
    """Where the plan says that pointers begin each copy of a body, in every round and every run."""
    pointers = {placement.value for placement in plan.placements if placement.how == POINTER}
    loops = {node.name: node for node in graph.walk() if isinstance(node, While)}
    for record in plan.rolled:
        own = [value.name for value in loops[record.loop].parameters if value.name in pointers]
        for copy, heads in enumerate(record.heads):
            places = [
                (name, plan.placements[number]) for name, number in zip(own, heads, strict=True) if number != OPEN
            ]
            context = (*record.within, (record.loop, copy))
            yield context, {name: place.region for name, place in places if not place.strides}


class _Run:
    """Executes graphs over either kind of bytes."""

    def __init__(self, store: OwnBytes | PlannedBytes, rng: random.Random, trace: Trace) -> None:
        self.store = store
        self.rng = rng
        self.trace = trace

    def read(self, value: Value, where: str) -> bytes:
        """What a branch or a loop itself reads."""
        content = self.store.read(value)
        self.trace.note(f"{where} reads {value}", content)
        return content

    def root(self, graph: Graph, schedule: Schedule) -> None:
        """The whole program, and its updates."""
        self.graph(graph, schedule)
        contents = [(target, self.read(source, f"{target} from")) for target, source in graph.updates]
        for target, content in contents:
            self.store.update(target, content)

    def graph(self, graph: Graph, schedule: Schedule) -> None:
        self.nodes(graph.nodes, schedule)

    def nodes(self, nodes: Sequence[Node], schedule: Schedule) -> None:
        by_name = {node.name: node for node in nodes}
        for name in any_order(schedule, self.rng):
            node = by_name.get(name)
            if isinstance(node, While):
                self.loop(node, schedule.bodies[name][0])
            elif isinstance(node, CaseOf):
                self.case(node, schedule.bodies[name])
            elif node is not None:
                self.store.apply(node, self.trace)

    def case(self, node: CaseOf, bodies: Sequence[Schedule]) -> None:
        index = int.from_bytes(self.read(node.index, node.name), "little", signed=True)
        if index < 0 and node.fallbacks:
            self.assign(node.fallbacks, node.outputs)
            self.store.end_arm(node.name, len(node.arms))
        elif 0 <= index < len(node.arms):
            self.graph(node.arms[index], bodies[index])
            self.assign(node.arms[index].outputs, node.outputs)
            self.store.end_arm(node.name, index)
        else:
            raise Diverged(f"case {node.name} has no arm {index}")

    def loop(self, node: While, body: Schedule) -> None:
        self.assign(node.inits, node.parameters)
        for stacked in node.stacked_outputs:
            if stacked is not None:
                self.store.write(stacked, bytes(stacked.nbytes))
        self.store.begin_loop(node.name)
        limit = max_trip_count(node)
        known = [int(str(inner.attrs.get(name, 0))) for inner in node.body.nodes for name in ("rounds", "most")]
        for round_number in range(max(*ROUNDS, *known) + 2):
            self.store.begin_round(node.name, round_number)
            self.store.write(node.counter, round_number.to_bytes(node.counter.nbytes, "little"))
            self.nodes(node.body.nodes[: node.check], body)
            if not self.read(node.condition, node.name)[0] or round_number == limit:
                self.assign(node.parameters, node.finals)
                self.store.end_loop(node.name)
                return
            self.fetch(node, round_number)
            self.nodes(node.body.nodes[node.check :], body)
            self.stack(node, round_number)
            self.assign(node.updates, node.parameters)
            self.store.end_round(node.name)
        raise Diverged(f"loop {node.name} does not end")

    def fetch(self, node: While, round_number: int) -> None:
        details = zip(node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True)
        for value, sequence, axis, backwards in details:
            whole = np.frombuffer(self.read(sequence, node.name), np.uint8).reshape(_byte_shape(sequence))
            index = whole.shape[axis] - 1 - round_number if backwards else round_number
            self.store.write(value, np.take(whole, index, axis).tobytes())

    def stack(self, node: While, round_number: int) -> None:
        details = list(zip(node.rows, node.stacked_outputs, node.row_axes, node.row_reversed, strict=True))
        rows = [self.read(row, f"{node.name} row") if out is not None else b"" for row, out, _, _ in details]
        for content, (row, stacked, axis, backwards) in zip(rows, details, strict=True):
            if stacked is None:
                continue
            whole = np.frombuffer(self.store.read(stacked), np.uint8).reshape(_byte_shape(stacked)).copy()
            index = whole.shape[axis] - 1 - round_number if backwards else round_number
            np.moveaxis(whole, axis, 0)[index] = np.frombuffer(content, np.uint8).reshape(_byte_shape(row))
            self.trace.note(f"{node.name} stores {stacked}", whole.tobytes())  # the row may have been there before
            self.store.write(stacked, whole.tobytes())

    def assign(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> None:
        """All at once: read every source, then write every target."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]
        contents = [(target, self.read(source, f"{target} from")) for source, target in pairs]
        self.store.point(pairs)
        for target, content in contents:
            self.store.assign(target, content)


def any_order(schedule: Schedule, rng: random.Random) -> Iterator[str]:
    """The steps in a random order that the schedule allows."""
    before = happens_before(schedule)
    done, waiting = 0, list(range(len(before)))
    while waiting:
        ready = [i for i in waiting if not before[i] & ~done]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        done |= 1 << chosen
        yield schedule.steps[chosen].node


def _byte_shape(value: Value) -> tuple[int, ...]:
    """The shape in bytes: the last dimension counts bytes, so that every axis but it can be cut."""
    assert isinstance(value.spec, TensorSpec)
    return (*value.spec.shape, value.spec.dtype.bits // 8)
