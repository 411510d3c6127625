"""Makes a history from a seed: which events come how often is a table of weights."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Event, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HOSTS = ("a", "b", "c")
PARALLELISMS = (1, 2, 3, 4)
SINKS = ("database", "files", "copied files")
DAMAGES = ("flip", "truncate", "remove", "renumber")
EVENTS_MIN, EVENTS_MAX = 5, 18
TIMED_SHARE = 0.3
"""So many jobs of histories without a control plane have timers and operator state."""
TRANSACTIONAL_SHARE = 0.4
"""So many of these jobs write to a system with transactions."""
TRANSACTIONAL_SINKS = ("kafka", "appended table", "upserted table")
SINK_MOMENT = "sink.effect.before"
EFFECTS_MAX = 14
"""A batch has about so many effects on such a system."""

BATCH_MOMENTS = (
    "batch.received",
    "batch.planned",
    "batch.changelog_written",
    "batch.ran",
    "log.appending",
    "log.appended",
    "batch.committed",
    "batch.published",
    "sink.prepare.before",
    "sink.prepared",
    "sink.publish.before",
    "sink.published",
    "store.create.before",
    "store.create.applied",
    "store.put.before",
    "store.put.applied",
)
CHECKPOINT_MOMENTS = (
    "snapshot.shard_linked",
    "checkpoint.linked",
    "snapshot.file_uploaded",
    "checkpoint.subtask_uploaded",
    "checkpoint.uploaded",
    "checkpoint.publishing",
    "checkpoint.published",
    "store.upload.before",
    "store.upload.applied",
    "retention.manifests_deleted",
    "retention.files_deleted",
    "store.delete.before",
    "store.delete.applied",
)
START_MOMENTS = (
    "run.fenced",
    "run.restored",
    "open.marker_taken",
    "close.flushed",
    "sink.recover.before",
    "sink.recovered",
    "message.attach.before",
    "message.heartbeat.delivered",
    "message.report.before",
    "message.report.delivered",
)
COMMITTING_MOMENTS = ("log.appended", "batch.committed")
GOING_BACK_MOMENTS = ("run.fenced", "sink.recovered", "run.restored", "log.appended", "batch.published")
RESCALE_MOMENTS = (
    "rescale.prepared",
    "rescale.held",
    "rescale.opened",
    "log.appending",
    "log.appended",
    "batch.planned",
    "batch.committed",
    "sink.recovered",
    "message.heartbeat.delivered",
)
LIVE_SHARE, LIVE_FAULT_SHARE, MODE_SHARE = 0.3, 0.4, 0.4
MOMENTS = (*BATCH_MOMENTS, *CHECKPOINT_MOMENTS, *START_MOMENTS)


def data_plane_history(seed: int) -> History:
    """Returns a history without a control plane."""
    chance = random.Random(f"history {seed}")
    kinds, weights = zip(*_DATA_PLANE.items(), strict=True)
    events = [
        *_job(seed, chance.choice(SINKS)),
        Event("records", 0.0, {"keys": _keys(chance)}),
        Event(
            "start", 1.0, {"parallelism": chance.choice(PARALLELISMS), "host": chance.choice(HOSTS), "hint": "latest"}
        ),
    ]
    if chance.random() < 0.7:
        events.append(Event("keeper", 0.0, {"seconds": chance.choice((3.0, 10.0))}))
    if chance.random() < 0.5:
        events.insert(0, Event("restarts", 0.0, {"times": chance.choice((1, 3, 100))}))
    if chance.random() < 0.4:
        events.insert(0, Event("retained", 0.0, {"count": chance.choice((1, 3))}))
    for _ in range(chance.randint(EVENTS_MIN, EVENTS_MAX)):
        kind = chance.choices(kinds, weights)[0]
        if kind in _SCENES:
            events += _SCENES[kind](chance, MOMENTS)
        else:
            events.append(Event(kind, _pause(chance), _GIVEN.get(kind, _nothing)(chance)))
    return History(seed, (*events, *_at_effects(seed, events)))


def _at_effects(seed: int, events: Sequence[Event]) -> list[Event]:
    """Returns scenes with faults between the effects of a batch on a system with transactions, if the job has one."""
    if not any(event.given.get("kind") in TRANSACTIONAL_SINKS for event in events):
        return []
    chance = random.Random(f"effects {seed}")
    scene = chance.choice((_sleeper, _crash, _overlap, _lose_host, _lose_host))
    return [_records(chance, 2.0), *scene(chance, (SINK_MOMENT,)), _records(chance, 1.0)]


def _job(seed: int, sink: str) -> list[Event]:
    """Returns what the job of a seed is; it writes to this sink, or to a system with transactions."""
    chance = random.Random(f"job {seed}")
    timed = [Event("timed")] if chance.random() < TIMED_SHARE else []
    if chance.random() >= TRANSACTIONAL_SHARE:
        return [*timed, Event("sink", 0.0, {"kind": sink})]
    faults = {name: chance.choice((0.0, 0.0, 0.05, 0.2)) for name in ("refused", "lost", "unanswered", "late")}
    return [
        *timed,
        Event("sink", 0.0, {"kind": chance.choice(TRANSACTIONAL_SINKS)}),
        Event("commit_faults", 0.0, faults),
    ]


def data_plane_scenes(
    *scenes: str,
    moments: Sequence[str] = MOMENTS,
    sinks: Sequence[str] = SINKS,
    is_timed: bool = False,
    faults: dict[str, float] | None = None,
) -> Callable[[int], History]:
    """Returns what makes histories of these scenes alone, and of records between them.

    Args:
        scenes: Their names.
        moments: The moments of their faults.
        sinks: The kinds of sinks.
        is_timed: Whether the job has timers and operator state.
        faults: Of commits of the sink's system, from the beginning on.
    """

    def history(seed: int) -> History:
        chance = random.Random(f"scenes {seed}")
        events = [
            *([Event("timed")] if is_timed else []),
            Event("sink", 0.0, {"kind": sinks[seed % len(sinks)]}),
            *([Event("commit_faults", 0.0, faults)] if faults else []),
            Event("restarts", 0.0, {"times": 3}),
            Event("records", 0.0, {"keys": _keys(chance)}),
            Event("start", 1.0, {"parallelism": chance.choice(PARALLELISMS), "host": "a"}),
            Event("keeper", 0.0, {"seconds": 3.0}),
        ]
        for _ in range(chance.randint(1, 2)):
            events.append(Event("records", _pause(chance), {"keys": _keys(chance)}))
            events += _SCENES[chance.choice(scenes)](chance, moments)
        return History(seed, tuple(events))

    return history


def live_history(seed: int) -> History:
    """Returns a history of the data plane whose drivers rescale their job, too, some with a fault on the way."""
    history, chance = data_plane_history(seed), random.Random(f"live {seed}")
    events: list[Event] = []
    for event in history.events:
        events.append(event)
        if event.kind in {"records", "command", "idle"} and chance.random() < LIVE_SHARE:
            if chance.random() < LIVE_FAULT_SHARE:
                moment = {"moment": chance.choice(RESCALE_MOMENTS), "nth": chance.choice((1, 1, 2))}
                events.append(Event(chance.choice(("kill_at", "kill_at", "freeze_at")), 0.1, moment))
            events += [
                Event("live_rescale", _pause(chance), {"parallelism": chance.choice(PARALLELISMS)}),
                _records(chance),
            ]
    return history.with_events(events)


def control_plane_history(seed: int) -> History:
    """Returns a history with control planes, which start the drivers."""
    chance = random.Random(f"controlled history {seed}")
    kinds, weights = zip(*_CONTROLLED.items(), strict=True)
    events = [
        Event("records", 0.0, {"keys": _keys(chance)}),
        Event("idle", 0.0, {"seconds": chance.choice((2.0, 12.0))}),
    ]
    for _ in range(chance.randint(4, 16)):
        kind = chance.choices(kinds, weights)[0]
        if kind in _CONTROLLED_SCENES:
            events += _CONTROLLED_SCENES[kind](chance)
            continue
        given = _GIVEN_CONTROLLED.get(kind) or _GIVEN.get(kind, _nothing)
        events.append(Event(kind, round(_pause(chance) * 2, 3), given(chance)))
    return History(seed, tuple(_with_modes(seed, events)), has_control_plane=True)


def _with_modes(seed: int, events: Iterable[Event]) -> Iterator[Event]:
    """Has some rescales carried out by a new driver, and the others by the running one."""
    chance = random.Random(f"modes {seed}")
    for event in events:
        if event.kind == "rescale" and chance.random() < MODE_SHARE:
            yield Event("rescale_mode", event.after, {"mode": chance.choice(("LIVE", "STANDBY"))})
            yield replace(event, after=0.3)
        else:
            yield event


def _pause(chance: random.Random) -> float:
    return round(chance.choice((0.1, 0.5, 1.0, 3.0, 8.0, 15.0)) * (0.5 + chance.random()), 3)


def _keys(chance: random.Random) -> list[int]:
    return [chance.randrange(6) for _ in range(chance.randint(2, 14))]


def _nothing(_: random.Random) -> dict[str, Any]:
    return {}


def _start(chance: random.Random) -> dict[str, Any]:
    return {
        "parallelism": chance.choice(PARALLELISMS),
        "host": chance.choice(HOSTS),
        "hint": chance.choice(("latest", "latest", "older", "none")),
        "kills": chance.random() < 0.6,
    }


def _records(chance: random.Random, after: float = 0.0) -> Event:
    return Event("records", after, {"keys": _keys(chance)})


def _sleeper(chance: random.Random, moments: Sequence[str]) -> list[Event]:
    """A driver stops at a moment, another one takes over, and the first one wakes."""
    return [
        Event("freeze_at", _pause(chance), _moment(chance, moments)),
        _records(chance),
        Event("start", round(chance.choice((4.0, 12.0, 25.0)), 3), {**_start(chance), "kills": False}),
        _records(chance, round(chance.choice((0.5, 6.0)), 3)),
        Event("thaw", round(chance.choice((1.0, 5.0, 15.0, 60.0)) * (0.5 + chance.random()), 3), {"which": 0}),
    ]


def _overlap(chance: random.Random, moments: Sequence[str]) -> list[Event]:
    """Two drivers run, and one of them stops or dies at a moment."""
    fault = chance.choice(("freeze_at", "kill_at"))
    return [
        Event("start", _pause(chance), {**_start(chance), "kills": False}),
        Event(fault, round(chance.choice((0.1, 1.0, 3.0)), 3), _moment(chance, moments)),
        _records(chance, 1.0),
        Event("thaw", round(chance.choice((5.0, 30.0)) * (0.5 + chance.random()), 3), {"which": 0}),
    ]


def _crash(chance: random.Random, moments: Sequence[str]) -> list[Event]:
    """A driver dies at a moment, and the next one starts at another parallelism."""
    return [
        Event("kill_at", _pause(chance), _moment(chance, moments)),
        _records(chance),
        Event("start", round(chance.choice((6.0, 14.0)), 3), {**_start(chance), "kills": True}),
    ]


def _lose_host(chance: random.Random, moments: Sequence[str]) -> list[Event]:
    """A driver's host is lost at a moment, which no other system notices; the next driver starts."""
    return [
        Event("lose_host_at", _pause(chance), _moment(chance, moments)),
        _records(chance),
        Event("start", 9.0, {**_start(chance), "kills": True}),
    ]


def _go_back(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A savepoint, and some time later the job goes back to it, and again if its driver dies."""
    return [
        Event("command", _pause(chance), {"what": "SAVEPOINT"}),
        _records(chance, round(chance.choice((3.0, 8.0)), 3)),
        Event(
            "rewind",
            round(chance.choice((4.0, 9.0, 20.0)), 3),
            {
                "parallelism": chance.choice(PARALLELISMS),
                "host": chance.choice(HOSTS),
                "which": chance.randrange(3),
                "claim": chance.random() < 0.5,
            },
        ),
        Event("kill_at", 0.0, {"moment": chance.choice(GOING_BACK_MOMENTS), "nth": 1}),
        Event("idle", 0.0, {"seconds": chance.choice((8.0, 25.0))}),
        _records(chance, round(chance.choice((1.0, 6.0)), 3)),
        Event("start", 1.0, {**_start(chance), "kills": True}),
        Event("delete_snapshot", round(chance.choice((8.0, 20.0)), 3), {"which": chance.randrange(3)}),
    ]


def _damage(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """An object of the newest checkpoint is damaged, and the job is restored."""
    how = chance.choice(DAMAGES)
    return [
        Event("idle", 0.0, {"seconds": 25.0}),
        Event("damage", 0.0, {"which": chance.randrange(100), "how": how}),
        Event("start", 0.5, {**_start(chance), "kills": True}),
    ]


def _trouble(chance: random.Random, moments: Sequence[str]) -> list[Event]:
    """The store loses answers, or damages them, while a driver starts or restarts."""
    shares = {name: chance.choice((0.0, 0.1, 0.25)) for name in ("not_applied", "answer_lost", "applied_late")}
    return [
        Event("store_faults", _pause(chance), {**shares, "slow": 0.02, "damaged": chance.choice((0.0, 0.02, 0.1))}),
        _records(chance),
        Event("kill_at", 0.5, _moment(chance, moments)),
        _records(chance, 5.0),
        Event("heal", round(chance.choice((5.0, 20.0)), 3), {}),
    ]


def _stop(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The job stops with a savepoint while records come, and starts again."""
    return [
        Event("command", _pause(chance), {"what": chance.choice(("STOP_WITH_SAVEPOINT", "drain"))}),
        _records(chance, 1.0),
        _records(chance, 1.0),
        Event("start", round(chance.choice((3.0, 9.0)), 3), {**_start(chance), "kills": chance.random() < 0.5}),
    ]


def _full(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The disk is full, or an executor is lost, while batches run."""
    return [
        _records(chance),
        Event("disk_full", round(chance.choice((0.1, 0.6)), 3), {"host": "a", "seconds": chance.choice((1.0, 3.0))}),
        _records(chance, 0.3),
        Event("lose_executor", round(chance.choice((0.2, 4.0)), 3), {"which": 0}),
        _records(chance, 0.3),
    ]


def _late(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver stops before its attempt opens, and wakes when much has happened since."""
    moment = chance.choice(("message.attach.before", "log.appending", "log.appending", "store.create.before"))
    others = [Event("start", 5.0, {**_start(chance), "kills": False})] if chance.random() < 0.5 else []
    return [
        Event("start", _pause(chance), {**_start(chance), "kills": False}),
        Event("freeze_at", 0.1, {"moment": moment, "nth": 1}),
        *others,
        *(_records(chance, round(chance.choice((2.0, 7.0)), 3)) for _ in range(4)),
        Event("thaw", round(chance.choice((1.0, 45.0, 90.0)), 3), {"which": 0}),
    ]


def _crash_twice(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver dies with a planned batch, and the next one as soon as it has taken a checkpoint."""
    return [
        Event("kill_at", _pause(chance), {"moment": chance.choice(("batch.planned", "batch.ran")), "nth": 1}),
        _records(chance),
        Event("start", 8.0, {**_start(chance), "kills": True}),
        Event("command", 0.1, {"what": chance.choice(("CHECKPOINT", "STOP_WITH_SAVEPOINT"))}),
        Event("kill_at", 0.1, {"moment": "checkpoint.published", "nth": 1}),
        Event("start", 9.0, {**_start(chance), "kills": True}),
    ]


def _gap(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver stops as it opens its attempt, and wakes when the log before it is deleted."""
    return [
        Event("idle", 0.0, {"seconds": 12.0}),
        Event("start", 0.0, {**_start(chance), "kills": False}),
        Event("freeze_at", 0.0, {"moment": "log.appending", "nth": 1}),
        *(_records(chance, 6.0) for _ in range(6)),
        Event("thaw", 60.0, {"which": 0}),
    ]


def _late_restart(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A run fails, another attempt takes over, and the failed run opens again in its process."""
    return [
        Event("restarts", 0.0, {"times": 3, "delay_ms": chance.choice((6_000, 12_000))}),
        Event("start", 0.0, {**_start(chance), "host": "a", "kills": True}),
        Event("disk_full", 9.0, {"host": "a", "seconds": 3.0}),
        Event("lose_executor", 0.0, {"which": 0}),
        _records(chance, 0.1),
        Event("start", 1.0, {**_start(chance), "host": "b", "kills": False}),
        _records(chance, 6.0),
    ]


def _leave(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The job goes back behind some checkpoints, and its driver dies before it has taken one."""
    return [
        Event("command", 0.5, {"what": "SAVEPOINT"}),
        _records(chance, 4.0),
        Event("idle", 0.0, {"seconds": 22.0}),
        Event("rewind", 0.0, {"parallelism": chance.choice(PARALLELISMS), "host": "b", "which": 0, "claim": False}),
        Event("kill_at", 0.0, {"moment": chance.choice(("run.restored", "batch.published")), "nth": 1}),
        Event("idle", 0.0, {"seconds": 9.0}),
    ]


def _drop_savepoint(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The job goes back to a savepoint, claims it or not, and the user deletes it after the first checkpoint."""
    return [
        Event("command", 1.0, {"what": "SAVEPOINT"}),
        Event("rewind", 4.0, {"parallelism": 2, "host": "a", "which": 0, "claim": chance.random() < 0.5}),
        Event("idle", 0.0, {"seconds": 18.0}),
        Event("delete_snapshot", 0.0, {"which": 0}),
    ]


def _keep_claimed(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The job claims a savepoint, cannot take a checkpoint while a clean-up runs, and its driver dies."""
    return [
        Event("command", 1.0, {"what": "SAVEPOINT"}),
        Event("rewind", 4.0, {"parallelism": 1, "host": "c", "which": 0, "claim": True}),
        Event("disk_full", 7.0, {"host": "c", "seconds": 25.0}),
        _records(chance, 1.0),
        Event("kill", 19.0, {"which": 0}),
        Event("idle", 0.0, {"seconds": 10.0}),
    ]


def _damage_late(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The newest checkpoint is damaged after a clean-up, and the job is restored on another host."""
    how = chance.choice(("flip", "renumber"))
    return [
        *(event for _ in range(3) for event in (_records(chance), Event("idle", 0.0, {"seconds": 11.0}))),
        Event("idle", 0.0, {"seconds": 30.0}),
        _records(chance),
        Event("idle", 0.0, {"seconds": 11.0}),
        Event("damage", 0.0, {"which": chance.randrange(100), "how": how}),
        Event("start", 0.0, {"parallelism": 2, "host": "b", "hint": "latest", "kills": True}),
        Event("idle", 0.0, {"seconds": 20.0}),
    ]


def _unanswered_commit(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """The store goes away when a batch has run, and the run opens again in its process."""
    return [
        Event("away_at", 1.0, {"moment": "batch.ran", "seconds": 50.0}),
        _records(chance),
        Event("idle", 0.0, {"seconds": 58.0}),
        _records(chance),
    ]


def _set_back(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver's clock is set back between two batches."""
    return [
        Event("clock_jump", 0.5, {"host": "a", "ms": -200_000}),  # the clock of the store contradicts a longer way
        Event("start", 0.0, {"parallelism": chance.choice(PARALLELISMS), "host": "a", "kills": True}),
        _records(chance, 1.0),
        Event("idle", 0.0, {"seconds": 5.0}),
    ]


def _left_behind(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver sleeps with a committed batch, the job goes back behind it, and the sleeper wakes."""
    rewind = {"parallelism": chance.choice(PARALLELISMS), "host": "b", "which": 0, "claim": False, "kills": False}
    return [
        Event("command", 0.5, {"what": "SAVEPOINT"}),
        _records(chance, 4.0),
        Event("freeze_at", 0.0, {"moment": chance.choice(COMMITTING_MOMENTS), "nth": 1}),
        _records(chance),
        Event("rewind", 4.0, rewind),
        Event("kill_at", 0.0, {"moment": "run.restored", "nth": 1}),
        Event("thaw", round(chance.choice((5.0, 6.0)), 3), {"which": 0}),
    ]


def _refused(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A user deletes a savepoint while a driver starts that shall go back to it."""
    return [
        Event("command", 0.5, {"what": "SAVEPOINT"}),
        _records(chance, 4.0),
        Event("rewind", 1.0, {"parallelism": 2, "host": "c", "which": 0, "claim": chance.random() < 0.5}),
        Event("delete_wanted_savepoint", 0.5),
        Event("start", 8.0, _start(chance)),
    ]


def _asked_again(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver dies after a savepoint that it has not told of, and the next one is asked for it again."""
    return [
        Event("command", _pause(chance), {"what": chance.choice(("SAVEPOINT", "STOP_WITH_SAVEPOINT", "drain"))}),
        Event("kill_at", 0.0, {"moment": "checkpoint.published", "nth": 1}),
        Event("start", 6.0, {**_start(chance), "kills": True}),
        Event("command_again", 0.5),
        _records(chance, 6.0),
    ]


def _overslept(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """A driver has chosen its base and sleeps, and wakes when the log since that base is deleted."""
    return [
        Event("retained", 0.0, {"count": 1}),
        Event("start", 0.0, {**_start(chance), "kills": True}),
        _records(chance, 1.0),
        Event("start", 16.0, {**_start(chance), "kills": False}),
        Event("freeze_at", 0.0, {"moment": "reading.list", "nth": 3, "of_newest": True}),
        *(_records(chance, 12.0) for _ in range(5)),
        Event("thaw", 12.0, {"which": 0}),
    ]


def _closed_stores(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """Executors close their stores between batches, and open them again."""
    return [
        _records(chance),
        Event("close_idle_stores", round(chance.choice((0.1, 2.0)), 3), {"which": 0}),
        _records(chance, round(chance.choice((0.0, 2.0)), 3)),
        Event("close_idle_stores", 2.0, {"which": 0}),
    ]


def _steady(chance: random.Random, _: Sequence[str]) -> list[Event]:
    """Records come all the time, over some checkpoints."""
    return [_records(chance, round(chance.uniform(0.5, 2.5), 3)) for _ in range(14)]


_SCENES: dict[str, Callable[[random.Random, Sequence[str]], list[Event]]] = {
    "sleeper": _sleeper,
    "overlap": _overlap,
    "crash": _crash,
    "go back": _go_back,
    "damaged": _damage,
    "trouble": _trouble,
    "stop": _stop,
    "full": _full,
    "late": _late,
    "gap": _gap,
    "late restart": _late_restart,
    "leave": _leave,
    "drop savepoint": _drop_savepoint,
    "keep claimed": _keep_claimed,
    "damage late": _damage_late,
    "unanswered commit": _unanswered_commit,
    "set back": _set_back,
    "steady": _steady,
    "crash twice": _crash_twice,
    "lose host": _lose_host,
    "left behind": _left_behind,
    "refused": _refused,
    "asked again": _asked_again,
    "overslept": _overslept,
    "closed stores": _closed_stores,
}


def _moment(chance: random.Random, moments: Sequence[str] = MOMENTS) -> dict[str, Any]:
    moment = chance.choice(moments)
    if moment == SINK_MOMENT:
        return {"moment": moment, "nth": chance.randint(1, EFFECTS_MAX)}
    return {"moment": moment, "nth": chance.choice((1, 1, 1, 2, 3))}


_DATA_PLANE: dict[str, float] = {
    "sleeper": 4,
    "overlap": 2,
    "crash": 3,
    "go back": 1.5,
    "damaged": 0.5,
    "trouble": 1.5,
    "stop": 0.7,
    "full": 0.7,
    "late": 1,
    "gap": 0.2,
    "late restart": 0.4,
    "leave": 0.3,
    "drop savepoint": 0.2,
    "keep claimed": 0.2,
    "damage late": 0.2,
    "unanswered commit": 0.3,
    "steady": 0.3,
    "crash twice": 0.5,
    "left behind": 0.5,
    "refused": 0.4,
    "asked again": 0.4,
    "overslept": 0.2,
    "closed stores": 0.4,
    "records": 10,
    "start": 6,
    "kill": 2,
    "freeze": 3,
    "thaw": 3,
    "kill_at": 6,
    "freeze_at": 4,
    "command": 8,
    "store_faults": 3,
    "store_away": 1.5,
    "host_cut_off": 1.5,
    "network_faults": 2,
    "heal": 3,
    "clock_jump": 2,
    "clock_drift": 0.5,
    "disk_full": 1,
    "lose_executor": 1.5,
    "lose_disk": 1,
    "sink_away": 1.5,
    "rewind": 4,
    "delete_snapshot": 0.7,
    "damage": 0.6,
    "idle": 1.5,
}

_GIVEN: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "records": lambda chance: {"keys": _keys(chance)},
    "start": _start,
    "kill": lambda chance: {"which": chance.randrange(4)},
    "freeze": lambda chance: {"which": chance.randrange(4)},
    "thaw": lambda chance: {"which": chance.randrange(4)},
    "kill_at": lambda chance: {"moment": chance.choice(MOMENTS), "nth": chance.choice((1, 1, 1, 2, 3))},
    "freeze_at": lambda chance: {"moment": chance.choice(MOMENTS), "nth": chance.choice((1, 1, 1, 2, 3))},
    "command": lambda chance: {
        "what": chance.choice(("CHECKPOINT", "SAVEPOINT", "SAVEPOINT", "STOP_WITH_SAVEPOINT", "drain", "CANCEL"))
    },
    "store_faults": lambda chance: {
        "not_applied": chance.choice((0.0, 0.05, 0.2)),
        "answer_lost": chance.choice((0.0, 0.05, 0.2)),
        "applied_late": chance.choice((0.0, 0.02, 0.1)),
        "slow": chance.choice((0.0, 0.05)),
        "damaged": chance.choice((0.0, 0.0, 0.02, 0.1)),
    },
    "store_away": lambda chance: {"seconds": chance.choice((3.0, 30.0, 90.0))},
    "host_cut_off": lambda chance: {"host": chance.choice(HOSTS), "seconds": chance.choice((3.0, 30.0, 90.0))},
    "network_faults": lambda chance: {
        "lost": chance.choice((0.0, 0.1, 0.4)),
        "unanswered": chance.choice((0.0, 0.1, 0.4)),
        "twice": chance.choice((0.0, 0.2)),
    },
    "clock_jump": lambda chance: {
        "host": chance.choice(HOSTS),
        "ms": chance.choice((-3_600_000, -60_000, -1_000, 1_000, 60_000, 3_600_000)),
    },
    "clock_drift": lambda chance: {"host": chance.choice(HOSTS), "drift": chance.choice((-0.1, 0.1))},
    "disk_full": lambda chance: {"host": chance.choice(HOSTS), "seconds": chance.choice((3.0, 20.0))},
    "lose_executor": lambda chance: {"which": chance.randrange(4)},
    "lose_disk": lambda chance: {"host": chance.choice(HOSTS)},
    "sink_away": lambda chance: {"seconds": chance.choice((2.0, 15.0, 90.0))},
    "rewind": lambda chance: {
        "parallelism": chance.choice(PARALLELISMS),
        "host": chance.choice(HOSTS),
        "which": chance.randrange(3),
        "claim": chance.random() < 0.3,
    },
    "delete_snapshot": lambda chance: {"which": chance.randrange(5)},
    "damage": lambda chance: {
        "which": chance.randrange(100),
        "how": chance.choice(("flip", "truncate", "remove", "renumber")),
    },
    "idle": lambda chance: {"seconds": chance.choice((25.0, 60.0, 200.0))},
}

CONTROL_HOSTS = ("a", "b")
CONTROL_MOMENTS = (
    "database.committing",
    "launcher.acting",
    "Launch.decided",
    "Launch.recorded",
    "Launch.taken",
    "MarkReaped.taken",
    "CreateAttempt.taken",
    "BeginSavepoint.decided",
    "BeginSavepoint.taken",
    "AdvanceChange.STOP.taken",
    "AdvanceChange.VERIFY.taken",
    "SwitchOver.decided",
    "SwitchOver.taken",
    "ReserveAttempts.taken",
    "SendRescale.taken",
    "FollowSwitch.decided",
    "FollowSwitch.taken",
    "FollowReturn.taken",
    "FallBack.taken",
    *RESCALE_MOMENTS[:3],
    "CheckSavepoint.decided",
    "RollBack.decided",
    "RollBack.taken",
    "RetryRestore.taken",
    "CompleteChange.taken",
    "SettleJob.taken",
    "ReplaceAttempt.taken",
    "deleted_job.log_closed",
    "deleted_job.objects_deleted",
)


def _regret(chance: random.Random) -> list[Event]:
    """A user changes the job, and cancels the change before its first batch."""
    change = chance.choice(("rescale", "upgrade"))
    return [
        Event(change, _pause(chance), {**_GIVEN_CONTROLLED[change](chance), "twice": False}),
        Event("cancel_change", round(chance.choice((0.3, 2.0, 4.0)), 3)),
    ]


def _go_back_to_revision(chance: random.Random) -> list[Event]:
    """The job is upgraded, and goes back to the revision from before."""
    return [
        Event("upgrade", _pause(chance), {"fails": False, "mode": "savepoint"}),
        Event("roll_back", 25.0, {"revision": 1, "state": chance.choice(("savepoint", "current"))}),
        _records(chance),
    ]


_CONTROLLED_SCENES: dict[str, Callable[[random.Random], list[Event]]] = {
    "regret": _regret,
    "go back to revision": _go_back_to_revision,
}

_CONTROLLED: dict[str, float] = {
    "regret": 2,
    "go back to revision": 1,
    "records": 10,
    "rescale": 6,
    "upgrade": 5,
    "roll_back": 1,
    "cancel_change": 0.5,
    "stop": 2.5,
    "cancel": 1,
    "run": 4,
    "run_from": 1.5,
    "command": 3,
    "clone": 1,
    "delete_clone": 0.7,
    "delete": 0.6,
    "kill": 3,
    "freeze": 2,
    "thaw": 2,
    "kill_at": 6,
    "freeze_at": 3,
    "kill_control": 2,
    "freeze_control": 2,
    "store_faults": 2,
    "store_away": 1,
    "host_cut_off": 1.5,
    "network_faults": 2,
    "heal": 2,
    "clock_jump": 1.5,
    "disk_full": 0.7,
    "lose_executor": 1,
    "sink_away": 1,
    "idle": 2,
}

_GIVEN_CONTROLLED: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "rescale": lambda chance: {"parallelism": chance.choice(PARALLELISMS), "twice": chance.random() < 0.3},
    "upgrade": lambda chance: {
        "fails": chance.random() < 0.4,
        "mode": chance.choice(("savepoint", "savepoint", "last-state", "stateless")),
        "twice": chance.random() < 0.2,
    },
    "roll_back": lambda chance: {
        "revision": chance.choice((1, 1, 2, 3)),
        "state": chance.choice(("savepoint", "current")),
    },
    "stop": lambda chance: {"drain": chance.random() < 0.3},
    "run": lambda chance: {"parallelism": chance.choice((None, *PARALLELISMS))},
    "run_from": lambda chance: {"which": "latest", "claim": chance.random() < 0.3},
    "command": lambda chance: {"what": chance.choice(("CHECKPOINT", "SAVEPOINT"))},
    "clone": lambda chance: {"parallelism": chance.choice(PARALLELISMS)},
    "kill_at": lambda chance: {
        "moment": chance.choice((*CONTROL_MOMENTS, *MOMENTS)),
        "nth": chance.choice((1, 1, 2, 3, 5)),
    },
    "freeze_at": lambda chance: {
        "moment": chance.choice((*CONTROL_MOMENTS, *MOMENTS)),
        "nth": chance.choice((1, 1, 2, 3)),
    },
    "kill_control": lambda chance: {"host": chance.choice(CONTROL_HOSTS), "seconds": chance.choice((1.0, 10.0, 60.0))},
    "freeze_control": lambda chance: {"host": chance.choice(CONTROL_HOSTS), "seconds": chance.choice((5.0, 30.0))},
    "host_cut_off": lambda chance: {"host": chance.choice(CONTROL_HOSTS), "seconds": chance.choice((3.0, 30.0, 90.0))},
    "clock_jump": lambda chance: {
        "host": chance.choice(CONTROL_HOSTS),
        "ms": chance.choice((-60_000, -1_000, 1_000, 60_000)),
    },
    "disk_full": lambda chance: {"host": chance.choice(CONTROL_HOSTS), "seconds": chance.choice((3.0, 20.0))},
}
