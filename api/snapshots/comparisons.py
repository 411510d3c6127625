"""Comparisons of two checkpoints or savepoints of a job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints
from keyscale.errors import KeyscaleError
from keyscale.state.doors.catalogue import FileHandle, read_manifest
from keyscale.state.doors.paths import split_location

from ..control_plane.cursors import write_cursor
from ..errors import CheckpointNotFoundError, PlanTimeoutError
from ..jobs.jobs import require_job
from ..store_check import open_to_read, read_within
from .checkpoints import answer_of, operator_size
from .schemas.snapshot_maintenance import ComparisonAnswer, OperatorComparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Checkpoint, CheckpointSubtask, Job
    from keyscale.state.doors.catalogue import Manifest

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing

Files = Sequence[FileHandle]
"""The files of all subtasks of an operator; two subtasks may have files with the same content."""


def compare(  # noqa: PLR0917 - two checkpoints, and a part of a list
    context: Context, user: Principal, reference: str, first_id: int, second_id: int, listing: Listing
) -> ComparisonAnswer:
    """Compares two checkpoints or savepoints.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job lacks one of the checkpoints.
        CursorInvalidError: The cursor belongs to another list.
        TooManyInFlightError: Other comparisons are in progress.
    """
    page = listing.page(int)
    begin = 0 if page.after is None else page.after[0]
    with context.sessions() as session:
        job = require_job(session, reference)
        found = [checkpoints.find(session, job.id, each) for each in (first_id, second_id)]
        parts = [checkpoints.subtasks(session, job.id, each) for each in (first_id, second_id)]
    first, second = found
    if first is None or second is None:
        raise CheckpointNotFoundError(f"the job has no checkpoint {first_id if first is None else second_id}")
    sums = (_sums(parts[0]), _sums(parts[1]))
    with context.comparisons.place(user.id):
        files, reason = _files(context, job, (first, second))
        uids = sorted({*sums[0], *sums[1]} | (set() if files is None else {*files[0], *files[1]}))
        end = min(len(uids), begin + page.limit)
        compared = operators_compared(uids[begin:end], *sums, files)
    return ComparisonAnswer(
        from_checkpoint=answer_of(first),
        to_checkpoint=answer_of(second),
        operators=compared,
        next=write_cursor((end,)) if end < len(uids) else None,
        reason=reason,
    )


def operators_compared(
    uids: Sequence[str],
    first: Mapping[str, Mapping[str, int]],
    second: Mapping[str, Mapping[str, int]],
    files: tuple[Mapping[str, Files], Mapping[str, Files]] | None,
) -> list[OperatorComparison]:
    """Returns the comparison of each operator. Pure.

    Args:
        uids: The operators.
        first: The sums of each operator in the first checkpoint.
        second: The sums of each operator in the second checkpoint.
        files: The files of each operator in both checkpoints; None: unknown.
    """
    return [
        OperatorComparison(
            uid=uid,
            from_state_size=_size(uid, first, None if files is None else files[0]),
            to_state_size=_size(uid, second, None if files is None else files[1]),
            from_entries=first.get(uid, {}).get("entries"),
            to_entries=second.get(uid, {}).get("entries"),
            to_checkpointed_size=second.get(uid, {}).get("checkpointed_size"),
            **({} if files is None else _compared_files(files[0].get(uid, ()), files[1].get(uid, ()))),
        )
        for uid in uids
    ]


def _size(uid: str, sums: Mapping[str, Mapping[str, int]], files: Mapping[str, Files] | None) -> int | None:
    """Returns the size of an operator's files, each counted once.

    If the files are unknown, it is the sum of the subtasks' sizes.
    """
    if uid in sums and files is not None and uid in files:
        return sum({file.path: file.size_bytes for file in files[uid]}.values())
    return sums.get(uid, {}).get("state_size")


def _compared_files(first: Files, second: Files) -> dict[str, int]:
    """Compares files by their content, as a savepoint has its own copies.

    An object of two subtasks counts once.
    """
    first, second = (list({file.path: file for file in files}.values()) for files in (first, second))
    in_first, in_second = ({file.sha256 for file in files} for files in (first, second))
    parts = {
        "shared": [file for file in second if file.sha256 in in_first],
        "only_from": [file for file in first if file.sha256 not in in_second],
        "only_to": [file for file in second if file.sha256 not in in_first],
    }
    return {f"{name}_files": len(files) for name, files in parts.items()} | {
        f"{name}_bytes": sum(file.size_bytes for file in files) for name, files in parts.items()
    }


def _sums(parts: Sequence[CheckpointSubtask]) -> dict[str, dict[str, int]]:
    return {
        uid: {
            "state_size": operator_size(members := list(group)),
            "entries": sum(member.entries for member in members),
            "checkpointed_size": sum(member.checkpointed_size for member in members),
        }
        for uid, group in groupby(parts, key=attrgetter("operator_uid"))
    }


def _files(
    context: Context, job: Job, both: tuple[Checkpoint, Checkpoint]
) -> tuple[tuple[dict[str, Files], dict[str, Files]] | None, str | None]:
    """Reads the files of both checkpoints from the store.

    The time limit is the limit of a plan. Returns the reason if the files cannot be read.
    """

    def read(found: Checkpoint) -> dict[str, Files]:
        if found.external_path is None:
            return {}
        return _files_of(read_manifest(open_to_read(job.store_url), split_location(found.external_path)[1]))

    gone = [str(each.checkpoint_id) for each in both if each.external_path is None]
    if gone:
        return None, f"checkpoint {gone[0]} has no manifest"
    try:
        # One after the other, as each takes memory.
        return read_within(
            context.settings.plan_timeout_ms,
            lambda: (read(both[0]), read(both[1])),
            what="the manifests",
            but=(KeyscaleError, OSError),
        ), None
    except PlanTimeoutError:
        return None, "the store did not answer in time"
    except (KeyscaleError, OSError) as error:
        return None, f"a manifest cannot be read: {error.code if isinstance(error, KeyscaleError) else error.strerror}"


def _files_of(manifest: Manifest) -> dict[str, Files]:
    return {
        operator.uid: [file for snapshot in operator.subtasks for file in snapshot.files()]
        for operator in manifest.operators
    }
