"""Paths of objects, relative to the store's root.

Only this module builds them.

    <job>/log/<position>.json                                    the commit log, one object per entry
    <job>/changelog/<uid>/<batch>-<subtask>-<attempt>-<unique>   one subtask's mutations of one batch
    <job>/shared/<sha256>-<attempt>-<n>                          snapshot files that several checkpoints may reference
    <job>/chk-<n>/manifest.json                                  a checkpoint, beside its exclusive files
    <job>/savepoints/<id>/manifest.json                          a savepoint, beside all of its files
    job-records/<job>/<attempt>.json                             the job's definition, for a lost database
    job-records/<job>/artifacts/<sha256>                         its program and libraries
    control-planes/<name>.json                                   the address of a replica of the control plane

A shared file's name carries the attempt and the checkpoint that uploaded it, so a name is never used twice. An older
attempt that is still alive therefore cannot delete a file that a newer attempt has just uploaded, and a driver cannot
delete a file of its next checkpoint as a leftover of a failed one. Names of exclusive files and changelogs contain a
part unique to the task, so that tasks cannot overwrite each other's files. (Until version 0.1 names of shared files
lacked the checkpoint. Manifests name whole paths, so readers are not affected.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId

if TYPE_CHECKING:
    from keyscale.identifiers import OperatorUid, SubtaskIndex

POSITION_DIGITS = 20
MANIFEST_NAME = "manifest.json"
CONTROL_PLANES = "control-planes/"
JOB_RECORDS = "job-records/"
"""Outside of the jobs' own prefixes: a job may write anything there, and its record says which secrets it gets."""
NAME_BYTES_MAX = 200

_MANIFEST_PATH = re.compile(r"(?P<root>.*?/?)(?P<job>[^/]+)/(?:chk-\d+|savepoints/[^/]+)/manifest\.json")
_OWNED_PATH = re.compile(r"(?P<job>[^/]+)/(?:chk-(?P<number>\d+)|savepoints/(?P<savepoint>[^/]+))/manifest\.json")


class InvalidNameError(KeyscaleError):
    """A job id, operator uid or savepoint id is unsuitable for paths."""

    code = "STATE_NAME_INVALID"
    domain = "user"
    advice = "Use a shorter name; letters, digits, - and _ are the safest."


class LocationError(KeyscaleError):
    """A location does not lead to a manifest."""

    code = "STATE_LOCATION_INVALID"
    domain = "user"
    advice = (
        "Give the location that the checkpoint or savepoint was reported with, or `<store>/<name>/savepoints/<id>` for "
        "a new savepoint."
    )


def path_segment(name: str) -> str:
    """Returns a name as one path segment; distinct names give distinct segments.

    Raises:
        InvalidNameError: The name is empty or too long.
    """
    segment = quote(name, safe="").replace(".", "%2E")  # a segment is never ., .. or hidden
    if not name or len(segment) > NAME_BYTES_MAX:
        raise InvalidNameError(f"a name must have 1 to {NAME_BYTES_MAX} bytes in its quoted form")
    return segment


def control_plane(name: str) -> str:
    """Returns the path of a control plane replica's address."""
    return f"{CONTROL_PLANES}{path_segment(name)}.json"


@dataclass(frozen=True, slots=True)
class ChangelogOrigin:
    """The batch and the attempt that a changelog was written by."""

    batch_id: BatchId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one job's objects."""

    job_id: JobId

    @property
    def job(self) -> str:
        """The prefix of all of the job's objects, ending in a slash."""
        return f"{path_segment(self.job_id)}/"

    @property
    def records(self) -> str:
        """The prefix of the job's records, which only the control plane writes."""
        return f"{JOB_RECORDS}{self.job}"

    def record(self, attempt: Attempt) -> str:
        """Returns the path of an attempt's record."""
        return f"{self.records}{attempt:0{POSITION_DIGITS}}.json"

    def recorded_attempt(self, path: str) -> Attempt | None:
        """Returns the attempt of a record's path, or None."""
        name = path.removeprefix(self.records).removesuffix(".json")
        is_number = name.isascii() and name.isdecimal()
        return Attempt(int(name)) if is_number and path == self.record(Attempt(int(name))) else None

    def recorded_artifact(self, sha256: str) -> str:
        """Returns the path of the bytes of a program or library."""
        return f"{self.records}artifacts/{sha256}"

    @property
    def log(self) -> str:
        return f"{self.job}log/"

    def log_entry(self, position: int) -> str:
        return f"{self.log}{position:0{POSITION_DIGITS}}.json"

    def log_position(self, path: str) -> int | None:
        """Returns the position of a log entry's path, or None."""
        name = path.removeprefix(self.log)
        digits = name.removesuffix(".json")
        return int(digits) if digits.isdecimal() and len(digits) == POSITION_DIGITS and name.endswith(".json") else None

    @property
    def changelogs(self) -> str:
        return f"{self.job}changelog/"

    def changelog(
        self, uid: OperatorUid, *, batch_id: BatchId, subtask: SubtaskIndex, attempt: Attempt, unique: str
    ) -> str:
        """Returns the path of a changelog.

        Args:
            uid: The operator.
            batch_id: The batch that made its mutations.
            subtask: The subtask that wrote it.
            attempt: The attempt that the task belonged to.
            unique: A string that no other try of the task uses.
        """
        name = f"{batch_id:0{POSITION_DIGITS}}-{subtask}-{attempt}-{path_segment(unique)}"
        return f"{self.changelogs}{path_segment(uid)}/{name}"

    def changelog_origin(self, path: str) -> ChangelogOrigin | None:
        """Returns the batch and attempt of a changelog's path, or None."""
        parts = path.removeprefix(self.changelogs).rpartition("/")[2].split("-", 3)
        numbers = [int(part) for part in parts[:3] if part.isdecimal()]
        if not path.startswith(self.changelogs) or len(parts) != 4 or len(numbers) != 3:
            return None
        return ChangelogOrigin(BatchId(numbers[0]), Attempt(numbers[2]))

    @property
    def shared(self) -> str:
        return f"{self.job}shared/"

    def shared_file(self, sha256: str, attempt: Attempt, checkpoint_id: CheckpointId) -> str:
        return f"{self.shared}{sha256}-{attempt}-{checkpoint_id}"

    @property
    def checkpoints(self) -> str:
        """The prefix of the directories of all checkpoints, without a final slash."""
        return f"{self.job}chk-"

    def checkpoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.checkpoints}{checkpoint_id}/"

    @property
    def savepoints(self) -> str:
        return f"{self.job}savepoints/"

    def savepoint(self, savepoint_id: str) -> str:
        return f"{self.savepoints}{path_segment(savepoint_id)}/"

    def snapshot(self, checkpoint_id: CheckpointId, savepoint_id: str | None) -> str:
        """Returns the directory of a checkpoint, or of the given savepoint."""
        return self.checkpoint(checkpoint_id) if savepoint_id is None else self.savepoint(savepoint_id)

    def manifest(self, checkpoint_id: CheckpointId, savepoint_id: str | None = None) -> str:
        return f"{self.snapshot(checkpoint_id, savepoint_id)}{MANIFEST_NAME}"

    def changes(self, savepoint_id: str) -> str:
        """Returns the path of the request and answer that made a savepoint."""
        return f"{self.savepoint(savepoint_id)}changes.json"

    def positions(self, checkpoint_id: CheckpointId, savepoint_id: str | None, unique: str) -> str:
        """Returns the path of a snapshot's source positions."""
        return f"{self.snapshot(checkpoint_id, savepoint_id)}positions-{path_segment(unique)}.json"

    def exclusive_file(
        self,
        *,
        checkpoint_id: CheckpointId,
        savepoint_id: str | None,
        uid: OperatorUid,
        subtask: SubtaskIndex,
        unique: str,
        shard: int,
        name: str,
    ) -> str:
        """Returns the path of an exclusive file of a snapshot.

        `unique` is the unique part of the local snapshot's name.
        """
        folder = self.snapshot(checkpoint_id, savepoint_id)
        return f"{folder}{path_segment(uid)}/{subtask}-{path_segment(unique)}/{shard}/{name}"

    def operator_state_file(
        self,
        *,
        checkpoint_id: CheckpointId,
        savepoint_id: str | None,
        uid: OperatorUid,
        subtask: SubtaskIndex,
        unique: str,
    ) -> str:
        """Returns the path of a subtask's operator state; arguments as for `exclusive_file`."""
        folder = self.snapshot(checkpoint_id, savepoint_id)
        return f"{folder}{path_segment(uid)}/{subtask}-{path_segment(unique)}/operator-state"

    def savepoint_file(self, savepoint_id: str, sha256: str, attempt: Attempt, checkpoint_id: CheckpointId) -> str:
        """Returns the path of a savepoint's own copy of an immutable file."""
        return f"{self.savepoint(savepoint_id)}files/{sha256}-{attempt}-{checkpoint_id}"


def split_location(location: str) -> tuple[str, str]:
    """Returns a snapshot's store URL, and the path of its manifest.

    Args:
        location: The URL of the manifest, or of its directory.

    Raises:
        LocationError: The location does not lead to a manifest.
    """
    if not isinstance(location, str):
        raise LocationError(f"a location is the URL of a manifest as text, and not a {type(location).__name__}")
    if not location.endswith(f"/{MANIFEST_NAME}"):
        location = f"{location.rstrip('/')}/{MANIFEST_NAME}"
    scheme, separator, rest = location.partition("://")
    found = _MANIFEST_PATH.fullmatch(rest)
    if not separator or not found:
        raise LocationError(
            "a location is the URL of a manifest, <store>/<job>/chk-<n>/manifest.json or a savepoint's, or of its"
            " directory"
        )
    root = found["root"]
    return f"{scheme}://{root.rstrip('/')}", rest.removeprefix(root)


def savepoint_of(location: str) -> tuple[str, JobId, str]:
    """Returns the store URL, job and id of a savepoint's location.

    The location is the URL of the savepoint's manifest, or of the manifest's directory.

    Raises:
        LocationError: The location cannot be a savepoint's.
    """
    root, path = split_location(location)
    job_id = job_of_manifest(path)
    found = _OWNED_PATH.fullmatch(path)
    if found is None or found["savepoint"] is None:
        raise LocationError("a savepoint's location is <store>/<job>/savepoints/<id>")
    return root, job_id, unquote(found["savepoint"])


def job_of_manifest(path: str) -> JobId:
    """Returns the job that owns the manifest at a path.

    Raises:
        LocationError: The path cannot hold a manifest.
    """
    found = _OWNED_PATH.fullmatch(path)
    if found is not None:
        job_id = JobId(unquote(found["job"]))
        savepoint_id = None if found["savepoint"] is None else unquote(found["savepoint"])
        if Layout(job_id).manifest(CheckpointId(int(found["number"] or 0)), savepoint_id) == path:
            return job_id
    raise LocationError("the path does not lead to a job's manifest")


def recorded_job(path: str) -> JobId | None:
    """Returns the job of an object among the job records, or None."""
    segment = path.removeprefix(JOB_RECORDS).partition("/")[0]
    job_id = JobId(unquote(segment))
    return job_id if segment and path.startswith(Layout(job_id).records) else None


def location_of(store_url: str, path: str) -> str:
    """Returns a manifest's location: the URL that users see and restore from."""
    return f"{store_url.rstrip('/')}/{path}"
