"""The product's guards, each with a way to switch it off, and what the auditor then finds.

A guard that nothing misses when it is off is no guard, or the simulator is blind to it. So each is a negative control
of the simulator, too: `python -m tests.simulation --guards` plays histories with one guard after the other off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from keyscale import user_series
from keyscale.jobs.runtime.batch import runner, watermarks
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.runner import BatchRunner
from keyscale.jobs.runtime.driver import attempt, checkpoints, execution, resume_plan, retention_runner, target_check
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.runtime.driver.coordinator import Coordinator
from keyscale.jobs.runtime.driver.journal import Journal
from keyscale.jobs.sinks.published import Step
from keyscale.state.documents import checked_document, job_counters, manifest
from keyscale.state.documents.job_counters import NOTHING_COUNTED
from keyscale.state.log import recovery, resolution
from keyscale.state.log.commit_log import CommitLog, FencedError
from keyscale.state.retention import deletion_plan
from keyscale.state.retention.deletion import Deleted
from keyscale.state.retention.deletion_plan import RetentionFacts, RetentionPolicy
from tests.simulation import sink_model
from tests.simulation.environment import play
from tests.simulation.generator import data_plane_history, data_plane_scenes
from tests.simulation.history import Event, History
from tests.simulation.object_store import StoreClient, StoreModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.jobs.runtime.driver.attempt import OpenAttempt

Patch = tuple[Any, str, object]


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard of the product.

    Attributes:
        name: What the guard holds, as a sentence.
        off: What is replaced so that nothing holds it: the object, its attribute, and the replacement.
        finding: A pattern of what the auditor finds.
        seed: A seed whose history shows it, which is tried first.
        seeds: It is found within the histories of so many seeds, from 0 on.
        history: Makes the history of a seed.
        is_dear: Whether the control takes so long that the default tier leaves it out.
    """

    name: str
    off: tuple[Patch, ...]
    finding: str
    seed: int
    seeds: int = 20
    history: Callable[[int], History] = data_plane_history
    is_dear: bool = False

    def found_by(self, seed: int) -> list[str]:
        """Returns what the auditor finds in the history of a seed with the guard off, if it is what is expected."""
        findings = play(self.history(seed), patches=list(self.off)).findings
        return [finding for finding in findings if re.search(self.finding, finding)]

    def first_seed(self) -> int | None:
        """Returns a seed whose history shows that the guard is off; None if none within its bound does."""
        tried = [self.seed, *(seed for seed in range(self.seeds) if seed != self.seed)]
        return next((seed for seed in tried if self.found_by(seed)), None)


# The commit log


def _append_over(log: CommitLog, position: int, entry: Any) -> int:
    data = checked_document.encode_document("log-entry", 1, _record_type()(position, log._nonce, entry))
    log._store.put(log._layout.log_entry(position), data)
    return position + 1


def _record_type() -> Any:
    from keyscale.state.log import commit_log  # noqa: PLC0415

    return commit_log._Record


_append = CommitLog.append


def _append_as_own(log: CommitLog, position: int, entry: Any) -> int:
    try:
        return _append(log, position, entry)
    except FencedError:
        return position + 1


_check_fit = resume_plan.check_fit


def _check_fit_of_any_attempt(assignment: Any, resume: Any, *rest: Any) -> Any:
    return _check_fit(assignment, replace(resume, attempt=0), *rest)


def _reopen_any_attempt(store: Any, assignment: Any, opened: OpenAttempt) -> OpenAttempt:
    plan = resume_plan.newest_plan(store, assignment, opened.unusable)
    return replace(
        opened,
        journal=opened.journal.at(plan.resume.next_position),
        resume=plan.resume,
        manifest=plan.manifest,
        positions=plan.positions,
        unusable=plan.unusable,
    )


def _forget_plan(history: Any, entry: Any) -> None:
    history._check(entry)


_open_entry = resolution._History.open


def _open_on_any_base(history: Any, entry: Any, *, first: bool) -> None:
    base = None if history._manifest is None else history._manifest.path
    _open_entry(history, msgspec.structs.replace(entry, restored_from=base), first=first)


# The batch loop


_commit = BatchLoop._commit


def publish_and_commit(loop: BatchLoop, batch_id: Any, outcome: Any, *, of_spark: bool) -> Any:
    loop._runner.publish(outcome.sinks)
    return _commit(loop, batch_id, outcome, of_spark=of_spark)


_begin_loop = BatchLoop.__init__


def _begin_settled(loop: BatchLoop, *given: Any, **named: Any) -> None:
    _begin_loop(loop, *given, **named)
    loop._settled.set()


_resumed = CommittedState.resumed


def _resumed_without_tokens(*given: Any) -> Any:
    return replace(_resumed(*given), sinks={})


_batch_times = watermarks.batch_times


def _times_by_this_clock(topology: Any, time: Any, now_ms: int, *rest: Any, **named: Any) -> Any:
    return _batch_times(topology, msgspec.structs.replace(time, processing_ms=0), now_ms, *rest, **named)


def _stop_and_go_on(coordinator: Coordinator, command: Any) -> Any:
    return coordinator._checkpoints.take(command.savepoint_id)


# Checkpoints and local state


_known_files = checkpoints.known_files


def _known_files_of_anybody(manifests: Any, job_id: Any, **_: Any) -> Any:
    return _known_files(manifests, job_id, claimed=True)


def _write_over(store: Any, document: Any) -> str:
    store.put(document.path, manifest.encode_manifest(document))
    path: str = document.path
    return path


_NO_HASHES = SimpleNamespace(sha256=lambda _=b"": SimpleNamespace(hexdigest=lambda: "0", digest=lambda: b"0" * 32))


# The clean-up


def _delete_files_first(store: Any, plan: Any, is_overtaken: Any) -> Deleted:
    if not is_overtaken():
        store.delete([info.path for info in plan.files])
        store.delete([info.path for info in plan.manifests])
    return Deleted()


def _policy_without_age(timeout_ms: int, retained_count: int, protected: frozenset[str]) -> RetentionPolicy:  # noqa: ARG001
    return RetentionPolicy(retained_count, 0, protected)


_needed_history = deletion_plan._needed_history


def _history_without_fences(facts: Any, retained: Any) -> Any:
    return replace(_needed_history(facts, retained), fences=frozenset())


_plan_deletion = retention_runner.plan_deletion


def _plan_beside_unreadable(facts: RetentionFacts, policy: Any) -> Any:
    return _plan_deletion(replace(facts, unreadable=frozenset()), policy)


def _fail(*_: Any) -> Any:
    raise recovery.NothingUsableError("there is no way back")


NOT_FOUND = "rows of job: missing"
WRONG_ROWS = "rows of job: "
NEEDED = "was deleted, which .* needs"


def _jump_ahead(_: int) -> History:
    events = (
        Event("records", 0.0, {"keys": [3, 5, 4, 0, 1, 2, 0, 4, 4, 2, 5, 0]}),
        Event("start", 1.0, {"parallelism": 4, "host": "b"}),
        Event("freeze_at", 0.078, {"moment": "batch.committed", "nth": 3}),
        Event("clock_jump", 22.601, {"host": "b", "ms": 3_600_000}),
    )
    return History(1, events)


COMMITTING = ("log.appended", "batch.committed", "sink.publish.before")
PUBLISHING = ("sink.published", "log.appending")

DATA_PLANE = (
    Guard(
        "The first entry at a position of the log stays.",
        ((CommitLog, "append", _append_over),),
        "of the log of job was written twice",
        1,
        history=data_plane_scenes("overlap", "late"),
    ),
    Guard(
        "An append compares the entry that has its position with its own.",
        ((CommitLog, "append", _append_as_own),),
        WRONG_ROWS,
        6,
        history=data_plane_scenes("overlap"),
    ),
    Guard(
        "A store that ignores conditions is refused.",
        ((StoreModel, "create", StoreModel.write), (target_check, "probe", lambda *_: None)),
        "was written twice",
        1,
        history=data_plane_scenes("overlap", "late"),
    ),
    Guard(
        "An opening finds no later entry.",
        ((CommitLog, "_check_end", lambda *_: None),),
        "behind position",
        1,
        history=data_plane_scenes("gap"),
    ),
    Guard(
        "An attempt does not open after a newer one.",
        ((resume_plan, "check_fit", _check_fit_of_any_attempt),),
        "is of attempt .*, after attempt",
        1,
        history=data_plane_scenes("late"),
    ),
    Guard(
        "An idle driver looks whether it is overtaken.",
        ((Journal, "is_overtaken", lambda _: False),),
        "still run beside",
        2,
        history=data_plane_scenes("sleeper", moments=COMMITTING),
    ),
    Guard(
        "A run that restarts looks whether it is overtaken.",
        ((execution, "reopen_attempt", _reopen_any_attempt),),
        "is of attempt .*, after attempt",
        1,
        history=data_plane_scenes("late restart"),
    ),
    Guard(
        "A restart keeps the key group ranges.",
        ((resolution, "_ranges_of", lambda _: None),),
        "has other key group ranges",
        15,
    ),
    Guard(
        "A planned batch runs again as planned.",
        ((resolution._History, "plan", _forget_plan),),
        "was planned again",
        3,
        history=data_plane_scenes("crash"),
    ),
    Guard(
        "A checkpoint waits for an earlier attempt's planned batch.",
        ((BatchLoop, "__init__", _begin_settled),),
        "was planned again",
        0,
        history=data_plane_scenes("crash twice"),
    ),
    Guard(
        "A history continues from its own base alone.",
        ((resolution._History, "open", _open_on_any_base),),
        "was committed after batch",
        0,
        history=data_plane_scenes("leave"),
    ),
    Guard(
        "A restore is carried out once.",
        ((resume_plan, "_is_carried_out", lambda *_: False),),
        "was carried out twice|" + WRONG_ROWS,
        0,
        history=data_plane_scenes("go back"),
    ),
    Guard(
        "A batch is published after its commit.",
        ((BatchLoop, "_commit", publish_and_commit),),
        "was published before",
        0,
        history=data_plane_scenes("steady"),
    ),
    Guard(
        "A starting attempt publishes the last committed batch.",
        ((execution.CommittedState, "resumed", staticmethod(_resumed_without_tokens)),),
        NOT_FOUND,
        0,
        history=data_plane_scenes("crash", moments=COMMITTING),
    ),
    Guard(
        "A starting attempt has its sinks drop what is not committed.",
        ((BatchRunner, "recover", lambda *_: None),),
        "are left staged|" + WRONG_ROWS,
        0,
        history=data_plane_scenes("crash", moments=("sink.prepared", "batch.ran")),
    ),
    Guard(
        "A sink refuses an older attempt.",
        ((sink_model, "next_step", lambda *_: Step.APPLY),),
        WRONG_ROWS + "|has ended",
        0,
        history=data_plane_scenes("sleeper", moments=COMMITTING),
    ),
    Guard(
        "Nothing is committed after the savepoint of a stop.",
        ((Coordinator, "_stop_now", _stop_and_go_on),),
        "after the savepoint",
        6,
        history=data_plane_scenes("stop"),
    ),
    Guard(
        "A batch's processing time does not go back.",
        ((watermarks, "batch_times", _times_by_this_clock), (runner, "batch_times", _times_by_this_clock)),
        "processing time",
        1,
        history=data_plane_scenes("set back"),
    ),
    Guard(
        "An opening counts at least what the log counts.",
        ((job_counters._Counters, "at_least", lambda self, _: self),),
        "counts",
        0,
    ),
    Guard(
        "A batch adds what its functions count.",
        ((user_series, "added", lambda counted, _: tuple(counted)),),
        "the function counts",
        0,
    ),
    Guard(
        "A rewind counts what it disowns.",
        ((CommitLog, "newest_counters", lambda _: NOTHING_COUNTED),),
        "counts",
        0,
        history=data_plane_scenes("go back"),
    ),
    Guard(
        "A manifest is published once.",
        ((checkpoints, "write_manifest", _write_over),),
        "was written twice",
        0,
        history=data_plane_scenes("sleeper", moments=("checkpoint.publishing", "checkpoint.uploaded")),
    ),
    Guard(
        "A checkpoint names files of its own job's checkpoints only.",
        ((checkpoints, "known_files", _known_files_of_anybody),),
        NEEDED,
        4,
        history=data_plane_scenes("drop savepoint"),
    ),
    Guard(
        "A claim is written before its files are used.",
        ((attempt, "take_claim", lambda *_: None),),
        NEEDED,
        1,
        history=data_plane_scenes("drop savepoint"),
    ),
    Guard(
        "Documents are checked by their checksums.",
        ((checked_document, "hashlib", _NO_HASHES),),
        ".",
        0,
        history=data_plane_scenes("damage late"),
    ),
    Guard(
        "Files are checked by length and hash.",
        ((StoreClient, "_check", staticmethod(lambda *_: None)),),
        ".",
        2,
        history=data_plane_scenes("damage late"),
    ),
    Guard(
        "A damaged checkpoint is passed over for an older one.",
        ((execution, "fall_back", _fail),),
        NOT_FOUND,
        2,
        history=data_plane_scenes("damage late"),
    ),
    Guard(
        "A manifest is deleted before its files.",
        ((retention_runner, "delete_planned", _delete_files_first),),
        NEEDED,
        0,
        history=data_plane_scenes("steady"),
    ),
    Guard(
        "Files without a manifest are kept until they are old.",
        ((RetentionPolicy, "for_uploads", staticmethod(_policy_without_age)),),
        "was published without its file|" + NEEDED,
        0,
        history=_jump_ahead,
    ),
    Guard(
        "Age is measured by the store's clock.",
        ((RetentionFacts, "by_store_clock", lambda facts: facts),),
        "was published without its file|" + NEEDED,
        0,
        history=_jump_ahead,
    ),
    Guard(
        "The base of the running attempt is kept.",
        ((deletion_plan, "_restored_from", lambda _: None),),
        ".",
        0,
        history=data_plane_scenes("keep claimed"),
    ),
    Guard(
        "The openings and the last entry of the log stay as fences.",
        ((deletion_plan, "_needed_history", _history_without_fences),),
        ".",
        0,
        history=data_plane_scenes("gap"),
    ),
    Guard(
        "An unreadable manifest stops the clean-up.",
        ((retention_runner, "plan_deletion", _plan_beside_unreadable),),
        NEEDED,
        0,
        history=data_plane_scenes("damage late"),
    ),
)

WITHOUT_CONTROL = {
    "Batches wait until a checkpoint is linked.": (
        "A store serves its own version alone: a snapshot within a batch is built again from the log."
    ),
    "A checkpoint takes a number that has no manifest.": (
        "A manifest is published once: one checkpoint fails, and the next one has the next number."
    ),
    "A store that failed in a batch is not used again.": "Its task has abandoned the store with the exception.",
    "A checkpoint whose files are missing is passed over.": "The restore finds the missing file and falls back.",
    "Changelogs are compared with the hash in the log.": "A changelog has a checksum of its own.",
    "The log decides which checkpoint is the newest.": (
        "From an older base the log leads to the same state, and it is kept since the oldest retained checkpoint."
    ),
    "An open store serves its own version alone.": "Not shown yet: few histories retry.",
    "A consolidated shard needs every later changelog.": "Not shown yet: the shard is taken over at once.",
    "The log since the oldest retained checkpoint is kept.": "Not shown yet: damage comes too late.",
    "An overtaken driver deletes nothing.": (
        "Its plan keeps the newest checkpoint of its listing, and a newer attempt starts from it or a later one."
    ),
}
"""Guards behind which another one stands, or that these histories do not reach; the tests of their units show them."""
