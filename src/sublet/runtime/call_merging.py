"""Merging of neighbouring calls into as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sublet.base.errors import KernelError, SubletError
from sublet.ir.graph import Node
from sublet.ops.op import MEASURE, SUSPEND
from sublet.plan import Context, Region, Stride
from sublet.runtime.kernel import (
    Array,
    Call,
    CallSequence,
    Mergeable,
    Relocatable,
    Repointable,
    RowCalls,
    no_op,
    sequence_calls,
)
from sublet.runtime.memory import ExecutableMemory, ValuePlaces

# Lazily bound actions: operands with addresses known only during the run.

MAX_BOUND_ACTIONS = 256
"""Most combinations of carry bindings and iterations with a cached action; beyond, actions are bound each time."""

Strides = Mapping[str, tuple[Stride, ...]]
"""By name, the strides of values over the iterations of loops."""


class LazyBinding:
    """An action bound lazily, once per combination of carry bindings and iterations, and cached.

    `fixed` gives the renamed carries bound to one region here, `varying` the carries with a binding known only in the
    run.
    """

    def __init__(
        self,
        memory: ExecutableMemory,
        context: Context,
        fixed: Mapping[str, Region],
        varying: Sequence[str],
        strides: Strides,
        make: Callable[[ValuePlaces], Any],
    ) -> None:
        self._memory = memory
        self._context = context
        self._fixed = fixed
        self._names = tuple(varying)
        self._loops = tuple(dict.fromkeys(stride.loop for chain in strides.values() for stride in chain))
        self._make = make
        self._bound: dict[object, Any] = {}
        self.strides = strides
        self.current: Mapping[str, int] = memory.current_iterations

    @property
    def depends_only_on_iterations(self) -> bool:
        """True if the action depends on iterations only."""
        return not self._names

    def __call__(self, *arguments: int) -> Any:
        pointed, current = self._memory.pointed, self.current
        key = (tuple([pointed[name] for name in self._names]), tuple([current[loop] for loop in self._loops]))
        call = self._bound.get(key)
        if call is None:
            call = self.bind_now()
            if len(self._bound) < MAX_BOUND_ACTIONS:
                self._bound[key] = call
        return call(*arguments)

    def bind_now(self, rounds: Mapping[str, int] | None = None) -> Any:
        """Return the action bound for the iterations `rounds`, or for the current iterations."""
        here = {**self._fixed, **{name: self._memory.pointed[name] for name in self._names}}
        return self._make(ValuePlaces(self._memory, self._context, here, rounds))

    def with_action(self, strides: Strides, make: Callable[[], Any]) -> LazyBinding:
        """Return another action with the same dependence on iterations, made by `make` in each iteration."""
        return LazyBinding(self._memory, self._context, {}, (), strides, lambda places: make())


class ErrorContext:
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
            raise KernelError(f"{self._node_description()}: {type(error).__name__}: {error}") from error

    @property
    def nodes_at_failure(self) -> tuple[Node, Node]:
        """The first and the last node possibly running at the failure; equal if the call knows the node."""
        number = self.call.reached if isinstance(self.call, CallSequence) else None
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

    def operand_setter(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """See `kernel.Repointable`."""
        return self.call.operand_setter(number, operands) if isinstance(self.call, Repointable) else None

    def _node_description(self) -> str:
        """Return the description of the failed node or nodes for the error message."""
        node, last = self.nodes_at_failure
        if node is not last:
            return f"nodes {node.name} to {last.name}, {len(self.nodes)} in one call"
        return f"node {node.name}, {node.op}{f' ({node.source})' if node.source else ''}"


def with_error_context(node: Node, call: Call) -> Call:
    """Return the call with foreign exceptions raised as a KernelError naming the node; a no-op stays bare."""
    return call if call is no_op else ErrorContext((node,), call)


def merge_calls(calls: Sequence[Call]) -> list[Call]:
    """Return the calls in order, with mergeable neighbours merged into one call."""
    merged: list[Call] = []
    waiting: list[Call] = []
    for call in (each for one in calls for each in _calls_of_rows(one)):
        if (isinstance(call, ErrorContext) and call.nodes[0].op not in (MEASURE, SUSPEND)) or (
            isinstance(call, LazyBinding) and call.depends_only_on_iterations
        ):
            waiting.append(call)
        else:
            merged += [*_merge_waiting(waiting), call]
            waiting = []
    return [*merged, *_merge_waiting(waiting)]


def _calls_of_rows(call: Call) -> Sequence[Call]:
    """Return the calls of the rows of a node, or the call itself for any other node."""
    if isinstance(call, ErrorContext) and isinstance(call.call, RowCalls):
        return [ErrorContext(call.nodes, row) for row in call.call.calls]
    return (call,)


def _merge_waiting(calls: Sequence[Call]) -> list[Call]:
    """Merge the calls; if any depends on the iteration, merge when the iteration is known."""
    return (
        [IterationDependentCalls(calls)]
        if any(isinstance(call, LazyBinding) for call in calls)
        else _merge_adjacent(calls)
    )


class IterationDependentCalls:
    """Neighbouring calls, some with operands moving from iteration to iteration.

    The calls are bound once, for iteration 0, if every moving call can relocate its operands; else per iteration.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._varying = [call for call in calls if isinstance(call, LazyBinding)]
        self._strides = {name: strides for one in self._varying for name, strides in one.strides.items()}
        self._run: Call | None = None

    def __call__(self) -> None:
        if self._run is None:
            self._run = self._relocatable_call() or self._varying[0].with_action(
                self._strides, lambda: sequence_calls(self._bind_calls(None))
            )
        self._run()

    def _bind_calls(self, rounds: Mapping[str, int] | None) -> list[Call]:
        """Return the merged calls bound for `rounds`; without `rounds`, for the current iterations."""
        return _merge_adjacent(
            [call.bind_now(rounds) if isinstance(call, LazyBinding) else call for call in self._calls]
        )

    def _relocatable_call(self) -> Call | None:
        """Return the calls bound for iteration 0, relocating moving operands; None if some call cannot relocate."""
        current = self._varying[0].current
        relocated: list[Call] = []
        for call in self._bind_calls(dict.fromkeys(current, 0)):
            if isinstance(call, ErrorContext):
                values = (value.name for node in call.nodes for value in (*node.uses, *node.defs))
                if not self._strides.keys().isdisjoint(values):
                    moved = (
                        call.call.follow_iterations(self._strides, current)
                        if isinstance(call.call, Relocatable)
                        else None
                    )
                    if moved is None:
                        return None
                    call = ErrorContext(call.nodes, moved)
            relocated.append(call)
        return sequence_calls(relocated)


def _merge_with_following(first: ErrorContext, call: Mergeable, following: Sequence[ErrorContext]) -> tuple[Call, int]:
    """Merge `call` with the first n of `following`; return the merged call and n. Raises KernelError on failure."""
    try:
        return call.merge_following([other.call for other in following])
    except SubletError:
        raise
    except Exception as error:  # raised by the library that opens the merged call
        node, what = first.nodes[0], f"{type(error).__name__}: {error}"
        raise KernelError(
            f"node {node.name}, {node.op}, and the nodes after it cannot be merged into one call: {what}"
        ) from error


def _merge_adjacent(calls: Sequence[Call]) -> list[Call]:
    """Return the bound calls in order, with neighbours merged where a backend can run them as one."""
    merged: list[Call] = []
    begin = 0
    while begin < len(calls):
        call, count = calls[begin], 1
        if isinstance(call, ErrorContext) and isinstance(call.call, Mergeable):
            following: list[ErrorContext] = []
            for other in calls[begin + 1 :]:
                if not isinstance(other, ErrorContext):
                    break
                following.append(other)
            whole, more = _merge_with_following(call, call.call, following)
            count += more
            call = ErrorContext((*call.nodes, *(node for other in following[:more] for node in other.nodes)), whole)
        merged.append(call)
        begin += count
    return merged
