"""Merging of neighbouring calls into as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sublet.base.errors import KernelError, SubletError
from sublet.ir.graph import Node
from sublet.runtime.calls import InTurn, in_turn, nothing
from sublet.runtime.cuts import CUT
from sublet.runtime.kernel import Array, Call, Joinable, Movable, Pointable
from sublet.runtime.varying import Varying


class Guarded:
    """A call of one or more nodes that raises every foreign exception as a KernelError naming the nodes."""

    __slots__ = ("call", "nodes")

    def __init__(self, nodes: Sequence[Node], call: Call) -> None:
        self.nodes = nodes
        self.call = call

    def __call__(self) -> None:
        try:
            self.call()
        except SubletError:
            raise
        except Exception as error:  # a kernel may raise anything
            raise KernelError(f"{self._shown()}: {type(error).__name__}: {error}") from error

    @property
    def reached(self) -> tuple[Node, Node]:
        """The first and the last node possibly running at the failure; equal if the call knows the node."""
        number = self.call.reached if isinstance(self.call, InTurn) else None
        if number is None or len(self.nodes) == 1:
            return self.nodes[0], self.nodes[-1]
        return self.nodes[number], self.nodes[number]

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`."""
        if len(self.nodes) == 1:
            self.call = call
            return True
        patch = getattr(self.call, "patch", None)  # an isinstance check of the protocol takes longer than the rest
        return patch is not None and bool(patch(number, call))

    def pointing(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """See `kernel.Repointable`."""
        return self.call.pointing(number, operands) if isinstance(self.call, Pointable) else None

    def _shown(self) -> str:
        """Return the description of the failed node or nodes for the error message."""
        node, last = self.reached
        if node is not last:
            return f"nodes {node.name} to {last.name}, {len(self.nodes)} in one call"
        return f"node {node.name}, {node.op}{f' ({node.source})' if node.source else ''}"


def guarded(node: Node, call: Call) -> Call:
    """Return the call with foreign exceptions raised as a KernelError naming the node; a no-op stays bare."""
    return call if call is nothing else Guarded((node,), call)


def joined(calls: Sequence[Call]) -> list[Call]:
    """Return the calls in order, with mergeable neighbours merged into one call."""
    merged: list[Call] = []
    waiting: list[Call] = []
    for call in calls:
        if (isinstance(call, Guarded) and call.nodes[0].op != CUT) or (isinstance(call, Varying) and call.by_round):
            waiting.append(call)
        else:
            merged += [*_together(waiting), call]
            waiting = []
    return [*merged, *_together(waiting)]


def _together(calls: Sequence[Call]) -> list[Call]:
    """Merge the calls; if any depends on the iteration, merge when the iteration is known."""
    return [ByRound(calls)] if any(isinstance(call, Varying) for call in calls) else _joined(calls)


class ByRound:
    """Neighbouring calls, some with operands moving from iteration to iteration.

    The calls are bound once, for iteration 0, if every moving call can relocate its operands; else per iteration.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._varying = [call for call in calls if isinstance(call, Varying)]
        self._strides = {name: strides for one in self._varying for name, strides in one.strides.items()}
        self._run: Call | None = None

    def __call__(self) -> None:
        if self._run is None:
            self._run = self._following() or self._varying[0].instead(self._strides, lambda: in_turn(self._bound(None)))
        self._run()

    def _bound(self, rounds: Mapping[str, int] | None) -> list[Call]:
        """Return the merged calls bound for `rounds`; without `rounds`, for the current iterations."""
        return _joined([call.bound(rounds) if isinstance(call, Varying) else call for call in self._calls])

    def _following(self) -> Call | None:
        """Return the calls bound for iteration 0, relocating moving operands; None if some call cannot relocate."""
        current = self._varying[0].current
        relocated: list[Call] = []
        for call in self._bound(dict.fromkeys(current, 0)):
            if isinstance(call, Guarded):
                values = (value.name for node in call.nodes for value in (*node.uses, *node.defs))
                if not self._strides.keys().isdisjoint(values):
                    moved = call.call.following(self._strides, current) if isinstance(call.call, Movable) else None
                    if moved is None:
                        return None
                    call = Guarded(call.nodes, moved)
            relocated.append(call)
        return in_turn(relocated)


def _whole(first: Guarded, call: Joinable, following: Sequence[Guarded]) -> tuple[Call, int]:
    """Merge `call` with the first n of `following`; return the merged call and n. Raises KernelError on failure."""
    try:
        return call.joined([other.call for other in following])
    except SubletError:
        raise
    except Exception as error:  # raised by the library that opens the merged call
        node, what = first.nodes[0], f"{type(error).__name__}: {error}"
        raise KernelError(
            f"node {node.name}, {node.op}, and those after it: cannot be opened as one: {what}"
        ) from error


def _joined(calls: Sequence[Call]) -> list[Call]:
    """Return the bound calls in order, with neighbours merged where a backend can run them as one."""
    merged: list[Call] = []
    begin = 0
    while begin < len(calls):
        call, count = calls[begin], 1
        if isinstance(call, Guarded) and isinstance(call.call, Joinable):
            following: list[Guarded] = []
            for other in calls[begin + 1 :]:
                if not isinstance(other, Guarded):
                    break
                following.append(other)
            whole, more = _whole(call, call.call, following)
            count += more
            call = Guarded((*call.nodes, *(node for other in following[:more] for node in other.nodes)), whole)
        merged.append(call)
        begin += count
    return merged
