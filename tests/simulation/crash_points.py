"""Every crash point: the durable steps of each kind of work, and the same history with a crash at each of them.

A durable step is a write to the store or to a sink, a commit of the database, or a message. What a process does between
two of them leaves nothing behind, so a crash before each step of each process is a crash at every moment that differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.history import Event, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.environment import Outcome

VICTIMS = ("itself", "all drivers", "all control planes", "everything")

_RECORDS = Event("records", 0.0, {"keys": [0, 1, 2, 3, 4, 5, 0, 1]})
_MORE = Event("records", 0.0, {"keys": [5, 4, 3, 2]})


def _data_plane(*events: Event) -> History:
    start = Event("start", 0.0, {"parallelism": 2, "host": "a"})
    keeper = Event("keeper", 0.0, {"seconds": 3.0})
    return History(0, (_RECORDS, start, keeper, *events, Event("idle", 0.0, {"seconds": 20.0})))


def _controlled(*events: Event) -> History:
    ready = Event("idle", 0.0, {"seconds": 14.0})
    return History(0, (_RECORDS, ready, *events, Event("idle", 0.0, {"seconds": 40.0})), has_control_plane=True)


def _watch(after: float = 0.0) -> Event:
    return Event("watch", after)


def _upgrade(mode: str, *, fails: bool = False) -> Event:
    return Event("upgrade", 0.0, {"fails": fails, "mode": mode})


_STOP = Event("stop", 0.0, {"drain": False})
_STOPPED = Event("idle", 0.0, {"seconds": 12.0})
_SAVEPOINT = Event("command", 0.0, {"what": "SAVEPOINT"})
_LATER = Event("idle", 0.0, {"seconds": 8.0})

KINDS: dict[str, History] = {
    "batches": _data_plane(_watch(4.0), _MORE),
    "first start": _data_plane(_watch()),
    "checkpoint": _data_plane(_LATER, _watch(), _MORE),
    "savepoint": _data_plane(_LATER, _watch(), _SAVEPOINT, _MORE),
    "another parallelism": _data_plane(
        Event("idle", 0.0, {"seconds": 14.0}),
        _watch(),
        Event("start", 0.0, {"parallelism": 3, "host": "b"}),
        _MORE,
    ),
    "take-over of a running attempt": _data_plane(
        Event("idle", 0.0, {"seconds": 12.0}),
        _watch(),
        Event("start", 0.0, {"parallelism": 1, "host": "a"}),
        Event("records", 3.0, {"keys": [1, 2, 3]}),
    ),
    "rewind": _data_plane(
        _LATER,
        _SAVEPOINT,
        Event("records", 5.0, {"keys": [1, 2, 3]}),
        _watch(5.0),
        Event("rewind", 0.0, {"parallelism": 3, "host": "a", "which": 0, "claim": False}),
    ),
    "claim": _data_plane(
        _LATER,
        _SAVEPOINT,
        Event("records", 5.0, {"keys": [1, 2, 3]}),
        _watch(5.0),
        Event("rewind", 0.0, {"parallelism": 3, "host": "a", "which": 0, "claim": True}),
        Event("idle", 0.0, {"seconds": 30.0}),
    ),
    "retention": _data_plane(Event("idle", 0.0, {"seconds": 25.0}), _watch(), Event("idle", 0.0, {"seconds": 60.0})),
    "consolidation": _data_plane(
        Event("idle", 0.0, {"seconds": 12.0}),
        Event("start", 0.0, {"parallelism": 1, "host": "a", "kills": True}),
        _watch(8.0),
        _MORE,
        Event("records", 15.0, {"keys": [1, 2, 3]}),
        Event("idle", 0.0, {"seconds": 20.0}),
    ),
    "start": _controlled(_STOP, _STOPPED, _watch(), Event("run", 0.0, {})),
    "stop": _controlled(_watch(), _STOP),
    "drain": _controlled(_MORE, _watch(), Event("stop", 0.0, {"drain": True})),
    "cancel": _controlled(_watch(), Event("cancel", 0.0, {})),
    "requested savepoint": _controlled(_watch(), _SAVEPOINT),
    "restart": _controlled(_watch(), Event("kill", 0.0, {"which": 0})),
    "rescale": _controlled(_watch(), Event("rescale", 0.0, {"parallelism": 3}), _MORE),
    "rescale by a new driver": _controlled(
        Event("rescale_mode", 0.0, {"mode": "STANDBY"}), _watch(1.0), Event("rescale", 0.0, {"parallelism": 3}), _MORE
    ),
    "upgrade": _controlled(_watch(), _upgrade("savepoint"), _MORE),
    "failing upgrade": _controlled(_watch(), _upgrade("savepoint", fails=True), _MORE),
    "upgrade from the last state": _controlled(_watch(), _upgrade("last-state"), _MORE),
    "stateless upgrade": _controlled(_watch(), _upgrade("stateless"), _MORE),
    "roll back": _controlled(
        _upgrade("savepoint"),
        Event("records", 25.0, {"keys": [1, 2]}),
        _watch(10.0),
        Event("roll_back", 0.0, {"revision": 1, "state": "savepoint"}),
    ),
    "clone": _controlled(_watch(), Event("clone", 0.0, {"parallelism": 3}), _MORE),
    "start from a claimed savepoint": _controlled(
        _STOP, _STOPPED, _watch(), Event("run_from", 0.0, {"which": "latest", "claim": True}), _MORE
    ),
    "deletion": _controlled(_STOP, _STOPPED, _watch(), Event("delete", 0.0, {})),
}


def is_durable(moment: str) -> bool:
    """Whether a moment is that of a durable step."""
    return moment.startswith(("store.", "sink.", "message.report", "message.attach", "database.", "launcher."))


def steps_of(kind: str, play: Callable[[History], Outcome]) -> list[str]:
    """Plays the history of a kind without a crash; returns its durable steps, each with the process that takes it."""
    outcome = play(KINDS[kind])
    if outcome.findings:
        raise AssertionError(f"{kind} fails without a crash: {outcome.findings}")
    return outcome.durable


def crashes(kind: str, steps: int, victims: str, *, stride: int = 1, first: int = 0) -> Iterator[tuple[int, History]]:
    """Returns the history of a kind with a crash at each of its steps, or at some of them."""
    history = KINDS[kind]
    at = next(place for place, event in enumerate(history.events) if event.kind == "watch")
    for step in range(first, steps, stride):
        crash = Event("crash_at", 0.0, {"step": step, "victims": victims})
        yield step, history.with_events((*history.events[:at], crash, *history.events[at:]))
