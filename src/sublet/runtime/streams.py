"""Streams on a CPU: a stream is a thread running steps in order; signals order steps across streams.

Kernels release Python's global lock, and streams overlap. A step waits only for the steps listed by the
schedule: the checker proved the plan for every interleaving allowed by the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from weakref import finalize

from sublet.base.interrupts import renew_in_children
from sublet.plan.schedule import ScheduleStep
from sublet.runtime.kernel import Call, no_op

Job = Callable[[], None]
RUNNING, NOT_TO_RUN = "running", "nobody"


@dataclass(frozen=True)
class Task:
    """A step of the schedule with its bound call."""

    step: ScheduleStep
    call: Call


class Workers:
    """A pool of threads for streams; grows to the largest number of streams run at once, empty before the first run.

    The threads end with the owner. The pool has no lock, because the garbage collector may end the owner in any thread.
    """

    def __init__(self, owner: object) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._ended = False
        finalize(owner, self._end)
        renew_in_children(self)

    def start(self, job: Job) -> None:
        """Run `job`, which must not raise, in a separate thread."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            Thread(target=self._serve, args=(inbox,), name="sublet stream", daemon=True).start()
        inbox.put(job)

    def _serve(self, inbox: SimpleQueue[Job | None]) -> None:
        while job := inbox.get():
            job()
            del job  # an idle thread holds no memory of an executable
            self._idle.append(inbox)
            if self._ended:
                self.close()

    def renew_in_child(self) -> None:
        """Forget the threads: they stay behind in the parent of a fork."""
        self._idle = []

    def close(self) -> None:
        """Let the idle threads end."""
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)

    def _end(self) -> None:
        """Let every thread end: idle threads now, all others after their jobs."""
        self._ended = True
        self.close()


class _Signal(Event):
    """An event set at the end of a step."""


@dataclass(frozen=True)
class _LaneStep:
    """A step of a stream: the signals to wait for, the call, and the signal to set."""

    waits: tuple[_Signal, ...]
    call: Call
    signal: _Signal | None


def streamed_calls(tasks: Sequence[Task], workers: Workers) -> list[Call]:
    """Return calls running every task in the stream of its step, complete once all tasks have ended.

    Waits for steps outside `tasks` are dropped: such steps have ended before.
    """
    names = {task.step.node for task in tasks}
    awaited = {name for task in tasks for name in task.step.waits if name in names}
    signals = {task.step.node: _Signal() for task in tasks if task.step.node in awaited}
    lanes: dict[int, list[_LaneStep]] = {}
    for task in tasks:
        waits = tuple(signals[name] for name in task.step.waits if name in names)
        entry = _LaneStep(waits, task.call, signals.get(task.step.node))
        lanes.setdefault(task.step.stream, []).append(entry)
    if len(lanes) < 2:
        return [task.call for task in tasks if task.call is not no_op]
    return [_Parallel(list(lanes.values()), list(signals.values()), workers).run]


class _Parallel:
    """Streams with a common start and end, also after an interrupt."""

    def __init__(self, lanes: list[list[_LaneStep]], signals: list[_Signal], workers: Workers) -> None:
        self._lanes = lanes
        self._signals = signals
        self._workers = workers
        self._ended = [Event() for _ in lanes]
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run every stream, the first in the calling thread. Raises the first failure, once all streams have ended."""
        self._failure = None
        for event in (*self._signals, *self._ended):
            event.clear()
        owners: dict[int, str] = {}  # by lane: RUNNING once started, NOBODY once it must not start
        complete = False
        try:
            for number in range(1, len(self._lanes)):
                self._workers.start(partial(self._serve, number, owners))
            self._serve(0, owners)
            complete = self._failure is None
        finally:  # KeyboardInterrupt can occur anywhere above
            self._join(owners, complete)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _serve(self, number: int, owners: dict[int, str]) -> None:
        """Run the steps of a stream, unless the main thread has claimed the stream after a failure."""
        if owners.setdefault(number, RUNNING) is not RUNNING:
            return
        try:
            for entry in self._lanes[number]:
                for signal in entry.waits:
                    signal.wait()
                if self._failure is not None:
                    return
                entry.call()
                if entry.signal is not None:
                    entry.signal.set()
        except BaseException as error:
            self._fail(error)
        finally:
            self._ended[number].set()

    def _join(self, owners: dict[int, str], complete: bool) -> None:
        """Wait for the other streams, through any number of interrupts: their kernels still write to the arena."""
        number = 1
        while number < len(self._lanes):
            try:
                if not complete:
                    self._fail(KeyboardInterrupt())
                if self._failure is None or owners.setdefault(number, NOT_TO_RUN) is RUNNING:
                    self._ended[number].wait()
                number += 1
            except KeyboardInterrupt:
                complete = False

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, and set all signals: no stream may wait for a step after a failure."""
        if self._failure is None:
            self._failure = error
        for signal in self._signals:
            signal.set()
