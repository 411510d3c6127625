"""The world of a simulation: one virtual time, one seed, and everything that happens, one thing after the other.

Each thread of the product is a task here, a greenlet that runs until it waits. What it waits for is known to the world,
which wakes tasks in the order of virtual time; so a history of minutes takes milliseconds, and the same seed gives the
same history. A killed process is never resumed; a frozen one is resumed when it is thawed, with what it knew.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import greenlet

from tests.simulation.clock import HostClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.trace import Trace

TICK_SECONDS = 1e-6


class ProcessEndedError(BaseException):
    """Unwinds a task of a process that is gone when the world ends; nothing that it does has an effect."""


@dataclass(slots=True)
class Host:
    """A machine: a clock, a disk, and the links to the store and to control planes.

    Attributes:
        name: Its name.
        clock: Its wall clock.
        is_full: Whether its disk is full.
        is_cut_off: Whether no message leaves it or reaches it.
        store_is_away: Whether the store cannot be reached from it.
    """

    name: str
    clock: HostClock = field(default_factory=HostClock)
    is_full: bool = False
    is_cut_off: bool = False
    store_is_away: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """A process on a host.

    Attributes:
        name: Its name in the trace.
        host: Where it runs.
        is_alive: Whether it has neither ended nor been killed.
        is_frozen: Whether it is stopped by a signal.
        exit_code: Of a process that has ended by itself.
        resources: Objects that only this process has, such as open stores and locks.
    """

    name: str
    host: Host
    is_alive: bool = True
    is_frozen: bool = False
    exit_code: int | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    at_death: list[Callable[[], None]] = field(default_factory=list)

    def kill(self) -> None:
        """Ends it at once; locks that the system holds for it are free."""
        if self.is_alive:
            self.is_alive = False
            for release in self.at_death:
                release()

    def exit(self, code: int) -> None:
        """Notes that it has ended by itself."""
        if self.is_alive:
            self.exit_code = code
            self.kill()


class Task:
    """A thread of a process."""

    __slots__ = ("awaited", "error", "greenlet", "is_done", "joiners", "name", "process", "waits")

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.greenlet: greenlet.greenlet | None = None
        self.waits = 0  # each wait has a number, so that a late wake-up is none of the next wait
        self.awaited = False
        self.is_done = False
        self.error: BaseException | None = None
        self.joiners: list[Task] = []


class World:
    """Virtual time and the tasks that live in it.

    Args:
        seed: Decides everything that is left to chance.
        trace: Takes what happens.
    """

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.trace = trace
        self.chance = random.Random(seed)
        self.now = 0.0
        self.is_over = False
        self.reached: Counter[str] = Counter()
        self.on_reach: Callable[[str], None] | None = None
        self.switches = 0
        self._numbers = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._hub = greenlet.getcurrent()
        self._tasks: list[Task] = []
        self.current: Task | None = None
        self.outside = Process("outside", Host("outside"))

    @property
    def process(self) -> Process:
        """The process whose task runs now."""
        return self.outside if self.current is None else self.current.process

    def reach(self, state: str) -> None:
        """Notes that a rare state was reached."""
        self.reached[state] += 1
        self.trace.note(self, f"reached: {state}")

    def moment(self, name: str) -> None:
        """Marks a named step of the product: a fault may happen there."""
        if self.on_reach is not None and self.current is not None:
            self.on_reach(name)

    # Time

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Lets something happen at a time."""
        heapq.heappush(self._agenda, (max(seconds, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Lets something happen after a while."""
        self.at(self.now + seconds, act)

    def sleep(self, seconds: float) -> None:
        """Lets the running task wait."""
        self.wait(max(seconds, TICK_SECONDS))

    def wait(self, timeout: float | None) -> bool:
        """Lets the running task wait until it is woken; returns whether it was, and not after the time."""
        task = self.current
        if task is None:
            raise RuntimeError("the world's own code cannot wait")
        if self.is_over:
            raise ProcessEndedError
        task.waits += 1
        number, woken = task.waits, False

        def expire() -> None:
            if task.waits == number and task.awaited:
                self._resume(task)

        task.awaited = True
        if timeout is not None:
            self.at(self.now + timeout, expire)
        woken = self._hub.switch()
        if self.is_over:
            raise ProcessEndedError
        return bool(woken)

    def wake(self, task: Task) -> None:
        """Ends a task's wait, if it waits; it runs on when those before it have."""
        if task.awaited:
            number = task.waits

            def go_on() -> None:
                if task.waits == number and task.awaited:
                    self._resume(task, woken=True)

            self.at(self.now, go_on)

    def ready(self, task: Task) -> None:
        task.awaited = True
        task.waits += 1
        self.at(self.now, lambda: self._resume(task))

    # Tasks

    def spawn(self, process: Process, name: str, run: Callable[[], None]) -> Task:
        """Starts a task in a process."""
        task = Task(process, name)

        def body(*_: object) -> None:
            try:
                run()
            except ProcessEndedError:
                pass
            except BaseException as error:  # noqa: BLE001 - the auditor reports it
                task.error = error
                self.trace.note(self, f"task {name} failed: {type(error).__name__}: {error}")
            task.is_done = True
            for joiner in task.joiners:
                self.wake(joiner)

        task.greenlet = greenlet.greenlet(body, self._hub)
        self._tasks.append(task)
        self.ready(task)
        return task

    def join(self, task: Task, timeout: float | None = None) -> None:
        """Waits for a task's end."""
        deadline = None if timeout is None else self.now + timeout
        while not task.is_done and (deadline is None or self.now < deadline):
            if self.current is not None:
                task.joiners.append(self.current)
            self.wait(None if deadline is None else deadline - self.now)

    def run_until(self, seconds: float) -> None:
        """Lets everything happen that happens until a time."""
        while self._agenda and self._agenda[0][0] <= seconds:
            at, _, act = heapq.heappop(self._agenda)
            self.now = max(self.now, at)
            act()
        self.now = max(self.now, seconds)

    def close(self) -> None:
        """Ends the world; what runs in it is unwound without effect."""
        self.is_over = True
        self._agenda.clear()
        for task in self._tasks:
            for _ in range(3):
                if task.greenlet is None or task.greenlet.dead or not task.greenlet:
                    break
                self.current = task
                task.greenlet.throw(ProcessEndedError)
        self.current = None
        self._tasks.clear()

    @property
    def failures(self) -> list[tuple[Task, BaseException]]:
        """The tasks of any process that ended with an exception."""
        return [(task, task.error) for task in self._tasks if task.error is not None]

    def _resume(self, task: Task, *, woken: bool = False) -> None:
        process = task.process
        if not process.is_alive or task.greenlet is None:
            return
        if process.is_frozen:
            thawed = process.resources.setdefault("thawed", [])
            thawed.append(lambda: self._resume(task, woken=woken))
            return
        task.awaited = False
        self.switches += 1
        before, self.current = self.current, task
        try:
            task.greenlet.switch(woken)
        finally:
            self.current = before

    def freeze(self, process: Process) -> None:
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Lets a frozen process go on where it was."""
        process.is_frozen = False
        for resume in process.resources.pop("thawed", []):
            self.after(0.0, resume)
