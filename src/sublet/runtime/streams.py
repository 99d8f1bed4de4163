"""Streams on a CPU: a stream is a thread that runs its steps in order; signals order the streams.

Kernels release Python's global lock, so that streams overlap. What a step waits for is what the schedule
says and nothing else: the plan was proven right for every interleaving that allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread

from sublet.base.forks import fork_lock, renew_in_children
from sublet.plan.schedule import Step
from sublet.runtime.calls import nothing
from sublet.runtime.kernel import Call

Job = Callable[[], None]
RUNNING, NOBODY = "running", "nobody"


@dataclass(frozen=True)
class Task:
    """A step of the schedule and its bound call."""

    step: Step
    call: Call


class Workers:
    """Threads that wait for a stream to run; as many as ever ran at once, and none before the first."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._lock = fork_lock()
        renew_in_children(self)

    def start(self, job: Job) -> None:
        """Run `job`, which must not raise, in a thread of its own."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            Thread(target=self._serve, args=(inbox,), name="sublet stream", daemon=True).start()
        inbox.put(job)

    def _serve(self, inbox: SimpleQueue[Job | None]) -> None:
        while job := inbox.get():
            job()
            with self._lock:
                self._idle.append(inbox)

    def renew_in_child(self) -> None:
        """Forget the threads, which a fork leaves behind in the parent."""
        self._idle = []

    def close(self) -> None:
        """Let the idle threads end."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class _Signal(Event):
    """Says that a step has ended."""


@dataclass(frozen=True)
class _Entry:
    """A step within its stream: what it waits for, what it runs, whom it tells."""

    waits: tuple[_Signal, ...]
    call: Call
    signal: _Signal | None


def streamed_calls(tasks: Sequence[Task], workers: Workers) -> list[Call]:
    """Calls that run the tasks, each in its stream, and end when all have ended.

    Waits for steps that are not among the tasks are over already.
    """
    names = {task.step.node for task in tasks}
    awaited = {name for task in tasks for name in task.step.waits if name in names}
    signals = {task.step.node: _Signal() for task in tasks if task.step.node in awaited}
    lanes: dict[int, list[_Entry]] = {}
    for task in tasks:
        waits = tuple(signals[name] for name in task.step.waits if name in names)
        entry = _Entry(waits, task.call, signals.get(task.step.node))
        lanes.setdefault(task.step.stream, []).append(entry)
    if len(lanes) < 2:
        return [task.call for task in tasks if task.call is not nothing]
    return [_Parallel(list(lanes.values()), list(signals.values()), workers).run]


class _Parallel:
    """Several streams that start and end together, whatever interrupts them."""

    def __init__(self, lanes: list[list[_Entry]], signals: list[_Signal], workers: Workers) -> None:
        self._lanes = lanes
        self._signals = signals
        self._workers = workers
        self._ended = [Event() for _ in lanes]
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run every lane, the first in this thread. Raises the first failure, once all lanes have ended."""
        self._failure = None
        for event in (*self._signals, *self._ended):
            event.clear()
        owners: dict[int, str] = {}  # of a lane: the thread that runs it, or nobody once it must not begin
        complete = False
        try:
            for number in range(1, len(self._lanes)):
                self._workers.start(partial(self._serve, number, owners))
            self._serve(0, owners)
            complete = self._failure is None
        finally:  # an interrupt may come anywhere above
            self._join(owners, complete)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _serve(self, number: int, owners: dict[int, str]) -> None:
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
        """Wait for the other lanes, through any number of interrupts: their kernels still write to the arena."""
        number = 1
        while number < len(self._lanes):
            try:
                if not complete:
                    self._fail(KeyboardInterrupt())
                if self._failure is None or owners.setdefault(number, NOBODY) is RUNNING:
                    self._ended[number].wait()
                number += 1
            except KeyboardInterrupt:
                complete = False

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, and wake whoever waits for a step that will not run."""
        if self._failure is None:
            self._failure = error
        for signal in self._signals:
            signal.set()
