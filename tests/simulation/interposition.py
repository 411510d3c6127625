"""Puts a world in the place of time, threads, chance and the store in the product's modules, as long as it lasts.

The product's code is the real one; only the names by which its modules reach what is outside of them lead here. Code
that runs outside of a task of a world, such as another test in the same process, reaches the real things.
"""

from __future__ import annotations

import queue as real_queue
import random as real_random
import sys
import threading as real_threading
import time as real_time
import uuid as real_uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from keyscale import clock as keyscale_clock
from keyscale import failpoints
from keyscale.api.lifecycle.stopwatch import processes_per_processor
from keyscale.state.objects import opening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.simulation.world import Task, World

PREFIXES = ("keyscale.state", "keyscale.jobs", "keyscale.api", "keyscale.db.repositories", "tests.support.rehearsal")
REAL_FAILPOINT, REAL_OPEN_STORE = failpoints.failpoint, opening.open_store


class WorldTime:
    """In the place of the module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    perf_counter = monotonic

    def process_time(self) -> float:
        return self._world.now

    thread_time = process_time

    def time(self) -> float:
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        return self._world.process.host.clock.now_ms(self._world.now) * 1_000_000

    def monotonic_ns(self) -> int:
        return int(self._world.now * 1e9)

    perf_counter_ns = monotonic_ns

    def clock_gettime_ns(self, _clock: int) -> int:
        return self.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class WorldLock:
    """In the place of `threading.Lock`; also of `RLock`, if it counts."""

    def __init__(self, world: World, *, reentrant: bool = False) -> None:
        self._world = world
        self._reentrant = reentrant
        self._owner: object = None
        self._count = 0
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        me: object = world.current or world
        if self._count and self._reentrant and self._owner is me:
            self._count += 1
            return True
        deadline = None if timeout < 0 else world.now + timeout
        while self._count:
            if not blocking or world.current is None or (deadline is not None and world.now >= deadline):
                return False
            self._waiters.append(world.current)
            world.wait(None if deadline is None else deadline - world.now)
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._owner = None
            while self._waiters:
                self._world.wake(self._waiters.popleft())

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class WorldEvent:
    """In the place of `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._world.wake(waiter)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        deadline = None if timeout is None else world.now + timeout
        while not self._is_set and (deadline is None or world.now < deadline):
            if world.current is not None:
                self._waiters.append(world.current)
            world.wait(None if deadline is None else deadline - world.now)
        return self._is_set


class WorldThread:
    """In the place of `threading.Thread`: a task of the process that starts it."""

    def __init__(
        self,
        *,
        world: World,
        target: Callable[..., None],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._world, self._target, self._args, self._kwargs = world, target, tuple(args), kwargs or {}
        self.name, self.daemon = name, daemon
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        process = self._world.process
        self._task = self._world.spawn(process, self.name, lambda: self._target(*self._args, **self._kwargs))

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            self._world.join(self._task, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done


class WorldTimer:
    """In the place of `threading.Timer`: it takes no task until it is due."""

    def __init__(self, world: World, interval: float, function: Callable[[], None]) -> None:
        self._world, self._interval, self._function = world, interval, function
        self._cancelled = False
        self.daemon = True

    def start(self) -> None:
        world, process = self._world, self._world.process

        def fire() -> None:
            if not self._cancelled and process.is_alive:
                world.spawn(process, "timer", self._function)

        world.after(self._interval, fire)

    def cancel(self) -> None:
        self._cancelled = True


class WorldQueue:
    """In the place of `queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiters: list[Task] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._world.wake(waiter)

    def get(self, timeout: float | None = None) -> Any:
        world = self._world
        deadline = None if timeout is None else world.now + timeout
        while not self._items:
            if deadline is not None and world.now >= deadline:
                raise real_queue.Empty
            if world.current is not None:
                self._waiters.append(world.current)
            world.wait(None if deadline is None else deadline - world.now)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class InlineFuture:
    """The result of a function that has run."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._error: BaseException | None = None
        try:
            self._value = run()
        except Exception as error:  # noqa: BLE001 - raised by `result`
            self._error = error

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - as in the standard library
        if self._error is not None:
            raise self._error
        return self._value


class InlineExecutor:
    """In the place of `ThreadPoolExecutor`: runs each function at once, in the task that hands it over."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> InlineFuture:
        return InlineFuture(lambda: function(*args, **kwargs))

    def map(self, function: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*arguments) for arguments in zip(*iterables, strict=False)])

    def shutdown(self, **_: bool) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class SpawningExecutor:
    """In the place of a `ThreadPoolExecutor` whose results nobody asks for: each function is a task of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        self._world.spawn(self._world.process, "pool", lambda: function(*args))

    def shutdown(self, **_: bool) -> None:
        return


class WorldUuid:
    """In the place of the module `uuid`: its numbers come from the seed."""

    def __init__(self, world: World) -> None:
        self._random = real_random.Random(f"uuid {world.seed}")
        self.UUID = real_uuid.UUID

    def uuid4(self) -> real_uuid.UUID:
        return real_uuid.UUID(int=self._random.getrandbits(128), version=4)


class WorldRandom:
    """In the place of the module `random`."""

    def __init__(self, world: World) -> None:
        source = real_random.Random(f"random {world.seed}")
        self.uniform, self.random, self.choice = source.uniform, source.random, source.choice
        self.Random = real_random.Random


def _threading_of(world: World) -> SimpleNamespace:
    return SimpleNamespace(
        Lock=lambda: WorldLock(world),
        RLock=lambda: WorldLock(world, reentrant=True),
        Event=lambda: WorldEvent(world),
        Thread=lambda **options: WorldThread(world=world, **options),
        Timer=lambda interval, function: WorldTimer(world, interval, function),
        BoundedSemaphore=real_threading.BoundedSemaphore,
        Semaphore=real_threading.Semaphore,
        local=real_threading.local,
        TIMEOUT_MAX=real_threading.TIMEOUT_MAX,
        get_ident=lambda: id(world.current),
        current_thread=real_threading.current_thread,
    )


def _replacements(world: World, open_store: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """Returns the names, what they lead to now, and what they shall lead to."""
    names = SimpleNamespace(SimpleQueue=lambda: WorldQueue(world), Empty=real_queue.Empty, Queue=real_queue.Queue)
    return [
        ("time", real_time, WorldTime(world)),
        ("threading", real_threading, _threading_of(world)),
        ("queue", real_queue, names),
        ("uuid", real_uuid, WorldUuid(world)),
        ("random", real_random, WorldRandom(world)),
        ("failpoint", REAL_FAILPOINT, world.moment),
        ("ThreadPoolExecutor", ThreadPoolExecutor, InlineExecutor),
        ("open_store", REAL_OPEN_STORE, open_store),
    ]


_places: dict[int, list[tuple[Any, str, object]]] = {}


def _places_now() -> list[tuple[Any, str, object]]:
    """Returns the modules' names that lead outside; they are searched again when modules have been imported since."""
    loaded = len(sys.modules)
    if loaded not in _places:
        _places.clear()
        real = {
            "time": real_time,
            "threading": real_threading,
            "queue": real_queue,
            "uuid": real_uuid,
            "random": real_random,
            "failpoint": REAL_FAILPOINT,
            "ThreadPoolExecutor": ThreadPoolExecutor,
            "open_store": REAL_OPEN_STORE,
        }
        modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(PREFIXES)]
        _places[loaded] = [
            (module, name, thing)
            for module in (*modules, keyscale_clock)
            for name, thing in real.items()
            if getattr(module, name, None) is thing
        ]
    return _places[loaded]


@contextmanager
def in_place(
    world: World, open_store: Callable[..., Any], further: Iterable[tuple[Any, str, object]] = ()
) -> Iterator[None]:
    """Puts a world in place until the block ends.

    Args:
        world: The world.
        open_store: In the place of `open_store`.
        further: Further attributes: the object, the name and the value.
    """
    replacements = {name: new for name, _, new in _replacements(world, open_store)}
    undo: list[tuple[Any, str, object]] = []
    try:
        for module, name, thing in _places_now():
            undo.append((module, name, thing))
            setattr(module, name, replacements[name])
        for owner, name, value in further:
            undo.append((owner, name, owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, thing in reversed(undo):
            setattr(owner, name, thing)


# The defaults of parameters, which were taken from the real modules when the product's modules were imported.
_REAL_DEFAULTS: dict[object, Callable[[World], object]] = {
    real_time.monotonic: lambda world: lambda: world.now,
    real_time.sleep: lambda world: world.sleep,
    real_time.perf_counter: lambda world: lambda: world.now,
    processes_per_processor: lambda world: lambda: 1.0,  # noqa: ARG005 - the load of this host is no part of a world
}
_defaults: dict[int, list[Any]] = {}


def _functions_with_defaults() -> list[Any]:
    loaded = len(sys.modules)
    if loaded not in _defaults:
        _defaults.clear()
        found: dict[int, Any] = {}
        for name, module in sorted(sys.modules.items()):
            if not name.startswith(PREFIXES):
                continue
            for thing in list(vars(module).values()):
                functions = list(vars(thing).values()) if isinstance(thing, type) else [thing]
                for function in functions:
                    given = getattr(function, "__defaults__", None)
                    if isinstance(given, tuple) and any(_is_real(value) for value in given):
                        found[id(function)] = function
        _defaults[loaded] = list(found.values())
    return _defaults[loaded]


def _is_real(value: object) -> bool:
    try:
        return value in _REAL_DEFAULTS
    except TypeError:
        return False


def defaults_in(world: World) -> list[tuple[Any, str, object]]:
    """Returns the replacements of such defaults, for `in_place`."""
    return [
        (
            function,
            "__defaults__",
            tuple(_REAL_DEFAULTS[value](world) if _is_real(value) else value for value in function.__defaults__),
        )
        for function in _functions_with_defaults()
    ]
