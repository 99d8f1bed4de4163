"""What every node touches: bytes read, then bytes written, all static.

An op's node is one action. A branch or a loop is several: the parallel moves at its edges, the
fetching of slices, the storing of rows. The replay performs actions; the race rule compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.checker.contents import Source, cut
from sublet.checker.layout import Layout
from sublet.checker.memory import Content
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.plan import Region


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that hold `content` afterwards. Not `touched`: they were in place and only changed their name."""

    region: Region
    content: Content
    touched: bool = True
    value: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """First all reads, then all writes."""

    where: str
    reads: tuple[Value, ...] = ()
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class LoopActions:
    """The edges of a While, in the order in which a round passes them."""

    enter: Action
    head: Action
    test: Action
    fetch: Action
    store: Action
    back: Action
    leave: Action

    def all(self) -> tuple[Action, ...]:
        return self.enter, self.head, self.test, self.fetch, self.store, self.back, self.leave


@dataclass(frozen=True)
class CaseActions:
    """The index, and the end of every arm; the fallbacks count as one more arm, the last."""

    index: Action
    ends: tuple[Action, ...] = field(default=())

    def all(self) -> tuple[Action, ...]:
        return self.index, *self.ends


@dataclass(frozen=True)
class Actions:
    """Builds the actions of nodes from where values lie and what their bytes are."""

    layout: Layout
    contents: Mapping[str, Content]
    sources: Mapping[str, tuple[tuple[Source, ...], ...]]

    def content(self, value: Value) -> Content:
        return self.contents.get(value.name, ())

    def of_op(self, node: Node) -> Action:
        """A kernel, or copies of views and parts; what is in place already is neither read nor written."""
        writes: list[Write] = []
        needed: set[int] = set()
        in_place: set[int] = set()
        computes = False
        for out, pieces in zip(node.outputs, self.sources[node.name], strict=True):
            region = None if out is None else self.layout.region(out)
            if out is None or region is None:
                continue
            for source in pieces:
                if source.input is None:
                    computes = True
                elif self._coincides(node, region, source):
                    in_place.add(source.input)
                    continue
                else:
                    needed.add(source.input)
                writes.append(self._write(out, region, source))
        untouched = set() if computes else in_place - needed
        reads = [value for i, value in enumerate(node.inputs) if value is not None and i not in untouched]
        return Action(f"node {node.name}", tuple(dict.fromkeys(reads)), tuple(_merged(writes)))

    def _coincides(self, node: Node, region: Region, source: Source) -> bool:
        operand = None if source.input is None else node.inputs[source.input]
        place = None if operand is None else self.layout.region(operand)
        if place is None or place.storage != region.storage:
            return False
        return place.offset + source.start == region.offset + source.at

    def _write(self, out: Value, region: Region, source: Source) -> Write:
        part = Region(region.storage, region.offset + source.at, source.length)
        return Write(part, cut(self.content(out), source.at, source.length), value=out.name)

    def of_case(self, node: CaseOf) -> CaseActions:
        ends = [
            self.moves(f"case {node.name}, end of arm {i}", arm.outputs, node.outputs)
            for i, arm in enumerate(node.arms)
        ]
        if node.fallbacks:
            ends.append(self.moves(f"case {node.name}, fallbacks", node.fallbacks, node.outputs))
        return CaseActions(Action(f"case {node.name}, index", node.uses[:1]), tuple(ends))

    def of_loop(self, node: While) -> LoopActions:
        where = f"loop {node.name}"
        stacked = [value for value in node.stacked if value is not None]
        rows = [row for row, out in zip(node.rows, node.stacked, strict=False) if out is not None]
        enter = self.moves(f"{where}, entry", node.inits, node.parameters)
        return LoopActions(
            enter=Action(enter.where, enter.reads, (*enter.writes, *self._fresh(stacked))),
            head=Action(f"{where}, start of a round", writes=tuple(self._fresh(node.body.inputs[:1]))),
            test=Action(f"{where}, condition", (node.condition,)),
            fetch=Action(f"{where}, slices", tuple(dict.fromkeys(node.sequences)), tuple(self._fresh(node.slices))),
            store=Action(f"{where}, rows", tuple(dict.fromkeys((*rows, *stacked))), tuple(self._fresh(stacked))),
            back=self.moves(f"{where}, end of a round", node.updates, node.parameters),
            leave=self.moves(f"{where}, exit", node.parameters, node.finals),
        )

    def moves(self, where: str, sources: Sequence[Value], targets: Sequence[Value | None]) -> Action:
        """A parallel assignment. Every target is new bytes, also where it already lies in place."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=False) if to is not None]
        writes = []
        for source, target in pairs:
            region = self.layout.region(target)
            if region is not None:
                touched = self.layout.region(source) != region
                writes.append(Write(region, self.content(target), touched, target.name))
        return Action(where, tuple(dict.fromkeys(source for source, _ in pairs)), tuple(writes))

    def _fresh(self, values: Sequence[Value]) -> Iterator[Write]:
        for value in values:
            region = self.layout.region(value)
            if region is not None:
                yield Write(region, self.content(value), value=value.name)


def _merged(writes: list[Write]) -> Iterator[Write]:
    """Neighbouring written parts of one value as one."""
    waiting: Write | None = None
    for write in writes:
        if waiting and waiting.value == write.value and waiting.region.end == write.region.offset:
            region = Region(write.region.storage, waiting.region.offset, waiting.region.nbytes + write.region.nbytes)
            waiting = Write(region, waiting.content + write.content, value=write.value)
            continue
        if waiting:
            yield waiting
        waiting = write
    if waiting:
        yield waiting
