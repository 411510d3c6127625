"""Makes a history from a seed: which events come how often is a table of weights."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Event, History

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS = ("a", "b", "c")
PARALLELISMS = (1, 2, 3, 4)
SINKS = ("database", "files", "copied files")
EVENTS_MIN, EVENTS_MAX = 6, 26

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
MOMENTS = (*BATCH_MOMENTS, *CHECKPOINT_MOMENTS, *START_MOMENTS)


def data_plane_history(seed: int) -> History:
    """Returns a history without a control plane."""
    chance = random.Random(f"history {seed}")
    kinds, weights = zip(*_DATA_PLANE.items(), strict=True)
    events = [
        Event("sink", 0.0, {"kind": chance.choice(SINKS)}),
        Event("records", 0.0, {"keys": _keys(chance)}),
        Event(
            "start", 1.0, {"parallelism": chance.choice(PARALLELISMS), "host": chance.choice(HOSTS), "hint": "latest"}
        ),
    ]
    if chance.random() < 0.7:
        events.append(Event("keeper", 0.0, {"seconds": chance.choice((3.0, 10.0))}))
    for _ in range(chance.randint(EVENTS_MIN, EVENTS_MAX)):
        kind = chance.choices(kinds, weights)[0]
        events.append(Event(kind, _pause(chance), _GIVEN.get(kind, _nothing)(chance)))
    return History(seed, tuple(events))


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
        given = _GIVEN_CONTROLLED.get(kind) or _GIVEN.get(kind, _nothing)
        events.append(Event(kind, round(_pause(chance) * 2, 3), given(chance)))
    return History(seed, tuple(events), has_control_plane=True)


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


_DATA_PLANE: dict[str, float] = {
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
    "damage": lambda chance: {"which": chance.randrange(100), "how": chance.choice(("flip", "truncate", "remove"))},
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

_CONTROLLED: dict[str, float] = {
    "records": 10,
    "rescale": 6,
    "upgrade": 5,
    "roll_back": 2,
    "cancel_change": 1,
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
