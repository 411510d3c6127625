"""Where objects are: the one builder of paths, all relative to the store's root.

    <job>/log/<position>.json                                    the commit log, one object an entry
    <job>/changelog/<uid>/<batch>-<subtask>-<attempt>-<unique>   one subtask's mutations of one batch
    <job>/shared/<sha256>-<attempt>                              snapshot files that several checkpoints may reference
    <job>/chk-<n>/manifest.json                                  a checkpoint; beside it the files of this one only
    <job>/savepoints/<id>/manifest.json                          a savepoint; beside it all of its files

A shared file's name carries the attempt that uploaded it, so that the clean-up of an older attempt's driver that is
still alive can never delete what a newer one has just uploaded. Exclusive files and changelogs carry a part unique to
the task that wrote them, so that no task can overwrite what another one wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from state.errors import KeyscaleError

if TYPE_CHECKING:
    from state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex

POSITION_DIGITS = 20
MANIFEST_NAME = "manifest.json"
NAME_BYTES_MAX = 200

_MANIFEST_PATH = re.compile(r"(?P<root>.*?/?)(?P<job>[^/]+)/(?:chk-\d+|savepoints/[^/]+)/manifest\.json")


class InvalidNameError(KeyscaleError):
    """A job id, operator uid or savepoint id that cannot be part of a path."""

    code = "STATE_NAME_INVALID"
    domain = "user"
    advice = "Use a shorter name; letters, digits, - and _ are the safest."


class LocationError(KeyscaleError):
    """A location that is not that of a manifest."""

    code = "STATE_LOCATION_INVALID"
    domain = "user"
    advice = "Give the location that the checkpoint or savepoint was reported with; it ends in /manifest.json."


def path_segment(name: str) -> str:
    """A name of any characters as one segment of a path, injectively.

    Raises:
        InvalidNameError: It is empty or too long.
    """
    segment = quote(name, safe="").replace(".", "%2E")  # no segment may be . or .., or hidden
    if not name or len(segment) > NAME_BYTES_MAX:
        raise InvalidNameError(f"a name must have 1 to {NAME_BYTES_MAX} bytes in its quoted form")
    return segment


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one job's objects."""

    job_id: JobId

    @property
    def job(self) -> str:
        """Prefix of all that belongs to the job, ending in a slash."""
        return f"{path_segment(self.job_id)}/"

    @property
    def log(self) -> str:
        return f"{self.job}log/"

    def log_entry(self, position: int) -> str:
        return f"{self.log}{position:0{POSITION_DIGITS}}.json"

    def log_position(self, path: str) -> int | None:
        """The position of the log entry at a path, or None if the path is not that of one."""
        name = path.removeprefix(self.log)
        digits = name.removesuffix(".json")
        return int(digits) if digits.isdecimal() and len(digits) == POSITION_DIGITS and name.endswith(".json") else None

    @property
    def changelogs(self) -> str:
        return f"{self.job}changelog/"

    def changelog(
        self, uid: OperatorUid, *, batch_id: BatchId, subtask: SubtaskIndex, attempt: Attempt, unique: str
    ) -> str:
        """Path of a changelog.

        Args:
            uid: The operator.
            batch_id: The batch whose mutations it holds.
            subtask: The subtask that wrote it.
            attempt: The attempt that the task belonged to.
            unique: What no other try of the task has.
        """
        name = f"{batch_id:0{POSITION_DIGITS}}-{subtask}-{attempt}-{path_segment(unique)}"
        return f"{self.changelogs}{path_segment(uid)}/{name}"

    @property
    def shared(self) -> str:
        return f"{self.job}shared/"

    def shared_file(self, sha256: str, attempt: Attempt) -> str:
        return f"{self.shared}{sha256}-{attempt}"

    @property
    def checkpoints(self) -> str:
        """Prefix of all checkpoints' directories (not ending in a slash)."""
        return f"{self.job}chk-"

    def checkpoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.checkpoints}{checkpoint_id}/"

    @property
    def savepoints(self) -> str:
        return f"{self.job}savepoints/"

    def savepoint(self, savepoint_id: str) -> str:
        return f"{self.savepoints}{path_segment(savepoint_id)}/"

    def snapshot(self, checkpoint_id: CheckpointId, savepoint_id: str | None) -> str:
        """Directory of a checkpoint, or of a savepoint if `savepoint_id` is given."""
        return self.checkpoint(checkpoint_id) if savepoint_id is None else self.savepoint(savepoint_id)

    def manifest(self, checkpoint_id: CheckpointId, savepoint_id: str | None = None) -> str:
        return f"{self.snapshot(checkpoint_id, savepoint_id)}{MANIFEST_NAME}"

    def positions(self, checkpoint_id: CheckpointId, savepoint_id: str | None, unique: str) -> str:
        """Path of a snapshot's source positions."""
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
        """Path of a snapshot file of this checkpoint only; `unique` is the local snapshot's own."""
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
        """Path of a subtask's operator state in a snapshot; arguments as of `exclusive_file`."""
        folder = self.snapshot(checkpoint_id, savepoint_id)
        return f"{folder}{path_segment(uid)}/{subtask}-{path_segment(unique)}/operator-state"

    def savepoint_file(self, savepoint_id: str, sha256: str, attempt: Attempt) -> str:
        """Path of a savepoint's own copy of an immutable file."""
        return f"{self.savepoint(savepoint_id)}files/{sha256}-{attempt}"


def split_location(location: str) -> tuple[str, str]:
    """The store's URL and the path in it of the manifest at a location.

    Raises:
        LocationError: It is not the location of a manifest.
    """
    scheme, separator, rest = location.partition("://")
    found = _MANIFEST_PATH.fullmatch(rest)
    if not separator or not found:
        raise LocationError(
            "a location is the URL of a manifest: <store>/<job>/chk-<n>/manifest.json, or of a savepoint's"
        )
    root = found["root"]
    return f"{scheme}://{root.rstrip('/')}", rest.removeprefix(root)


def location_of(store_url: str, path: str) -> str:
    """The location of a manifest: what a user or the control plane is told and restores from."""
    return f"{store_url.rstrip('/')}/{path}"
