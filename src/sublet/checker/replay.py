"""The replay: runs the schedule over abstract memory and looks at every byte that is read.

A branch runs every arm from the same memory and keeps what all ends agree on. A loop runs its body
until the memory at its head is what both the entry and the back edge agree on; what is wrong is
reported from that last round only.

Invariant: the memory at the entry of a loop holds no token of its body. So at the head of a round no
bytes of an earlier round are left, though a value has the same token in every round: the entry does
not agree. (Around an outer loop the same holds for its own head.) Parameters, whose tokens both
edges do write, are written anew by both, so only their regions hold them.

Rules: clobbered (other bytes lie where a value is read), undefined (nothing known lies there),
output-lost, weight-clobbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from sublet.analysis.schedule import Schedule
from sublet.checker.actions import Action, CaseActions, LoopActions
from sublet.checker.contents import whole
from sublet.checker.layout import Layout, span
from sublet.checker.memory import Content, Memory, Segment, meet
from sublet.checker.overlaps import AnyActions
from sublet.errors import Finding
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.plan import Region

SHOWN = 3
"""How many ranges of wrong bytes a message lists."""


def replay(
    graph: Graph,
    schedule: Schedule,
    layout: Layout,
    contents: Mapping[str, Content],
    actions: Mapping[str, AnyActions],
) -> list[Finding]:
    """Run the whole program once, all branches and any number of rounds. Returns what it read in vain."""
    run = _Replay(layout, contents, actions)
    memory = Memory()
    for value in (*graph.inputs, *graph.weights):
        region = layout.region(value)
        if region is not None:
            memory.write(region.storage, region.offset, whole(value), "the caller")
    run.graph(graph, schedule, memory)
    for value in dict.fromkeys(graph.outputs):
        run.read(value, memory, f"graph output {value}", "output-lost")
    for value in graph.weights:
        run.read(value, memory, f"weight {value} at the end", "weight-clobbered")
    return run.findings


class _Replay:
    def __init__(self, layout: Layout, contents: Mapping[str, Content], actions: Mapping[str, AnyActions]) -> None:
        self.layout = layout
        self.contents = contents
        self.actions = actions
        self.findings: list[Finding] = []

    def graph(self, graph: Graph, schedule: Schedule, memory: Memory) -> None:
        """Run all nodes of a graph in the order of its schedule, changing `memory`."""
        self.nodes({node.name: node for node in graph.nodes}, schedule, memory)

    def nodes(self, nodes: Mapping[str, Node], schedule: Schedule, memory: Memory) -> None:
        for step in schedule.steps:
            node = nodes.get(step.node)
            if node is not None:
                self.node(node, schedule.bodies.get(node.name, ()), memory)

    def node(self, node: Node, bodies: tuple[Schedule, ...], memory: Memory) -> None:
        actions = self.actions[node.name]
        if isinstance(node, While) and isinstance(actions, LoopActions):
            memory.tracks = self.loop(node, actions, bodies[0], memory).tracks
        elif isinstance(node, CaseOf) and isinstance(actions, CaseActions):
            memory.tracks = self.case(node, actions, bodies, memory).tracks
        elif isinstance(actions, Action):
            self.perform(actions, memory)

    def case(self, node: CaseOf, actions: CaseActions, bodies: tuple[Schedule, ...], memory: Memory) -> Memory:
        """Every arm from the same memory; what all of them agree on."""
        self.perform(actions.index, memory)
        ends = []
        for position, end in enumerate(actions.ends):
            path = memory.copy()
            if position < len(node.arms):
                self.graph(node.arms[position], bodies[position], path)
            self.perform(end, path)
            ends.append(path)
        return reduce(meet, ends) if ends else memory

    def loop(self, node: While, actions: LoopActions, body: Schedule, memory: Memory) -> Memory:
        """Rounds until the head is stable; the memory after the loop."""
        self.perform(actions.enter, memory)
        head = memory
        reported = len(self.findings)
        while True:
            del self.findings[reported:]
            left, end = self.round(node, actions, body, head)
            joined = meet(head, end)
            if joined.known_bytes() == head.known_bytes():
                break
            head = joined
        self.perform(actions.leave, left)
        return left

    def round(self, node: While, actions: LoopActions, body: Schedule, head: Memory) -> tuple[Memory, Memory]:
        """One round from memory `head`. Returns the memory at the exit edge and at the back edge."""
        memory = head.copy()
        self.perform(actions.head, memory)
        self.nodes({node.name: node for node in node.body.nodes[: node.check]}, body, memory)
        self.perform(actions.test, memory)
        left = memory.copy()
        self.perform(actions.fetch, memory)
        self.nodes({node.name: node for node in node.body.nodes[node.check :]}, body, memory)
        self.perform(actions.store, memory)
        self.perform(actions.back, memory)
        return left, memory

    def perform(self, action: Action, memory: Memory) -> None:
        for value in action.reads:
            self.read(value, memory, action.where)
        for write in action.writes:
            memory.write(write.region.storage, write.region.offset, write.content, action.where)

    def read(self, value: Value, memory: Memory, where: str, rule: str = "") -> None:
        """Every byte of the value must lie in its region."""
        region = self.layout.region(value)
        if region is None:
            return
        wrong = list(memory.mismatches(region.storage, region.offset, self.contents.get(value.name, whole(value))))
        if wrong:
            self.findings.append(_misread(value, region, wrong, where, rule))


def _misread(value: Value, region: Region, wrong: list[Segment], where: str, rule: str) -> Finding:
    known = next((segment for segment in wrong if segment.token is not None), None)
    found = "; ".join(_describe(segment) for segment in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more ranges" if len(wrong) > SHOWN else ""
    fix = f"keep the bytes of {value} until here"
    if known is not None and known.token != value.name:
        fix = f"place {value} and %{known.token} apart, or read {value} before %{known.token} is written"
    what = f"reads {value} at {span(region)}, but {found}{more}"
    return Finding(rule or ("clobbered" if known is not None else "undefined"), where, what, fix)


def _describe(segment: Segment) -> str:
    place = f"bytes [{segment.begin}, {segment.end})"
    if segment.token is None:
        return f"{place} hold nothing known ({segment.writer})"
    start = segment.begin - segment.base
    return f"{place} hold bytes [{start}, {start + segment.end - segment.begin}) of %{segment.token}, " + (
        f"written by {segment.writer}"
    )
