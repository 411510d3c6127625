"""The file sink: one directory per batch, published by a rename."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql import SparkSession

from keyscale.units import counted

from ..errors import InvalidTopologyError, SinkForbiddenError, SinkOccupiedError, SinkPublishError, SinkUnavailableError
from ..spark_internals.arrow_schemas import spark_schema_of
from ..spark_internals.hadoop_files import HadoopDirectory, file_failures, hadoop_settings
from .parquet_output import PARQUET, ParquetForm, ParquetOutput
from .published import Published, Step, decoded_token, last_kept, next_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from .sink import DirectStaging, SinkContext

logger = logging.getLogger(__name__)

FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""The short names of Spark's formats of files."""
_EXACT = frozenset({"json", "orc", "parquet"})
_STAGING = "_staging"  # readers of Hadoop files ignore names that begin with an underscore
_PUBLISHED = "_published"
_CHECK = "_check-"  # prefix of the directory by which a sink finds out whether it can write
_MARKER = "_keyscale"  # without an extension, so that globs for data files do not match
_SUCCESS = "_SUCCESS"  # as Spark's own writer creates
_PARTS = "-parts"  # suffix of a staging directory while subtasks write to it
_BATCH = "batch="


class _FileToken(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    path: str | None = (
        None  # the sink's path, which another program may have changed; None in tokens of earlier versions
    )

    @classmethod
    def of(cls, context: SinkContext, path: str) -> _FileToken:
        return cls(context.job_id, context.uid, context.batch_id, context.attempt, context.unique, path)

    @property
    def staging(self) -> str:
        """The batch's staging directory, relative to the sink's path."""
        return f"{_STAGING}/{self.job_id}/{self.uid}/{self.batch_id}-{self.attempt}-{self.unique}"

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class FileSink:
    """Writes files of any Spark format, one directory per batch.

    The directory is `<path>/batch=<number>/`.

    A batch's directory appears complete, with a single rename, after the batch was committed. A batch without rows also
    has a directory, so a missing number was never committed. On an object store a rename is a copy, and readers can see
    a partial copy. A job that is restored from an earlier savepoint replaces the directories of the batches that it
    runs again. Readers may move or delete directories that they have read. Subtasks write Parquet on a local path
    directly, as Spark would write it, if the sink is the only reader of an operator.

    Args:
        path: A directory that no other job or sink uses, at any address that Spark can write to.
        format: avro, csv, json, orc, parquet, text or xml; or the full class name of another format, as libraries have.
        options: Further options of Spark's DataFrameWriter.

    Raises:
        InvalidTopologyError: The format is unknown.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(self, path: str, format: str = "parquet", **options: str | bool | int) -> None:  # noqa: A002 - as in Spark
        if format.lower() not in FORMATS and "." not in format:
            raise InvalidTopologyError(
                f"FileSink has no format {format!r}: give one of {', '.join(sorted(FORMATS))}, or the full class name"
                " of a library's format"
            )
        self._path = path
        self._format = format
        self._options = options
        self._markers: dict[tuple[str, str], set[Published]] = {}

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        key = _FileToken.of(context, self._path)
        token, staging = key.text(), _staging(self._path, key)
        try:
            frame.write.format(self._format).options(**self._options).save(staging.path)
            staging.write_text(_MARKER, token)
        except Exception:
            staging.require_right()  # Spark says only that it could not make a directory
            with contextlib.suppress(SinkPublishError):  # report the first failure, or the outage
                staging.delete()
            raise
        return token

    def check(self, schema: pa.Schema, context: SinkContext) -> None:  # noqa: ARG002 - files may have any columns
        """Stages a marker, moves it beside the output, and removes it.

        Raises:
            SinkForbiddenError: The process's user may not write there.
            SinkOccupiedError: Another job writes here.
            SinkPublishError: The file system refuses.
            SinkUnavailableError: The file system failed.
        """
        root = HadoopDirectory(SparkSession.active(), self._path)
        markers = self._marker_directory(context.job_id, context.uid)
        if not markers.names():
            _refuse_a_shared_directory(root, context)
        key = _FileToken.of(context, self._path)
        staging, moved = _staging(self._path, key), root.child(f"{_CHECK}{key.unique}")
        for place in (root, root.child(_STAGING).child(key.job_id).child(key.uid), markers):
            place.require_right()
        try:
            staging.write_text(_MARKER, key.text())
            if not staging.move_to(moved):
                raise SinkPublishError(f"{staging.path} could not be moved to {moved.path}")
        finally:
            with contextlib.suppress(SinkForbiddenError, SinkPublishError, SinkUnavailableError):
                staging.delete()
                moved.delete()

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        # Subtasks that write themselves would never call the `prepare` of a subclass.
        if self._format.lower() != "parquet" or type(self).prepare is not FileSink.prepare:
            return None
        spark = SparkSession.active()
        try:
            root = HadoopDirectory(spark, self._path).local_path()
        except (SinkPublishError, SinkUnavailableError):  # raised again when the first batch is staged
            return None
        of_hadoop = {f"{PARQUET}{name}": value for name, value in hadoop_settings(spark, PARQUET).items()}
        form = ParquetForm.of(schema, self._options, {**of_hadoop, **spark.conf.getAll}, spark.version)
        return None if root is None or form is None else _DirectFiles(self._path, root, form)

    def publish(self, token: str) -> None:
        """Moves a batch from staging into place.

        The place is in the directory where the batch was staged.

        Raises:
            SinkOccupiedError: The place holds output of another job or of a newer attempt.
            SinkPublishError: The file system refuses, or the staged files are gone.
            SinkUnavailableError: The file system failed.
        """
        key = decoded_token(token, _FileToken)
        if key is not None:
            (self if key.path in {None, self._path} else FileSink(key.path or ""))._publish(key, token, self._path)

    def _publish(self, key: _FileToken, token: str, path_now: str) -> None:
        staging, target = _staging(self._path, key), self._target(key.batch_id)
        if target.exists():
            there = target.read_text(_MARKER)
            if there == token and not staging.exists():
                return
            if there is not None and there != token:
                _refuse_unless_disowned(there, key, target)
                target.delete()
        last = max(self._marked(key.job_id, key.uid), default=None, key=_age)
        step = next_step(last, key.attempt, key.batch_id)
        if not staging.exists():
            if step is Step.DONE:
                return  # a reader has removed it
            if key.path != path_now:  # the output of the sink's earlier place may be gone
                logger.warning("sink %s: batch %d is not found where the sink wrote before", key.uid, key.batch_id)
                return
            raise SinkPublishError(
                f"the files of batch {key.batch_id} of sink {key.uid} are missing from staging and from the output"
            )
        if step is Step.REPLACE:
            self._take_back(key.job_id, key.uid, key.attempt, -1)
        self._mark(key.job_id, key.uid, Published(key.attempt, key.batch_id))
        if target.exists():
            # The rename was interrupted. An object store first copies, then deletes, so staging is complete.
            target.delete()
        if not staging.move_to(target) and target.read_text(_MARKER) != token:
            raise SinkPublishError(f"batch {key.batch_id} of sink {key.uid} could not be moved into place")

    def published(self, token: str, schema: pa.Schema) -> DataFrame | None:
        """Reads a published batch again; see `ReadableSink`.

        Other formats than Parquet, ORC and JSON do not give every value back as it was.
        """
        key = decoded_token(token, _FileToken)
        if key is None or self._format.lower() not in _EXACT:
            return None
        spark = SparkSession.active()
        target = HadoopDirectory(spark, f"{key.path or self._path}/{_BATCH}{key.batch_id}")
        if target.read_text(_MARKER) != token:
            return None
        return (
            spark.read.format(self._format).options(**self._options).load(target.path, schema=spark_schema_of(schema))
        )

    def discard(self, token: str) -> None:
        staging = _staging(self._path, msgspec.json.decode(token, type=_FileToken))
        parts = HadoopDirectory(staging.spark, f"{staging.path}{_PARTS}")
        if parts.exists() and not parts.move_to(staging):  # a late task finds its directory gone
            raise SinkPublishError(f"{parts.path} could not be moved")
        staging.delete()

    def recover(self, context: SinkContext) -> None:
        """Removes staged batches of earlier runs.

        Also removes batches that are no longer part of the job's history.

        Raises:
            SinkOccupiedError: Another job writes here.
            SinkUnavailableError: The file system failed.
        """
        root = HadoopDirectory(SparkSession.active(), self._path)
        if not self._marked(context.job_id, context.uid):
            _refuse_a_shared_directory(root, context)
        staging = root.child(_STAGING).child(context.job_id).child(context.uid)
        left = [name for name in staging.names() if int(name.split("-")[1]) <= context.attempt]
        for name in left:
            staging.child(name).delete()
        if left:
            logger.info("sink %s: removed %d batches that earlier runs had staged", context.uid, len(left))
        marked = self._marked(context.job_id, context.uid)
        kept = context.batch_id
        if marked:
            kept = last_kept(max(marked, key=_age), context.batch_id, context.rewinds)
        is_left = any(each.batch_id > kept for each in marked)
        if is_left and context.batch_id < 0:
            return  # the first batch of the new history takes the output back
        if is_left or not marked:
            self._take_back(context.job_id, context.uid, context.attempt, kept)
        self._mark(context.job_id, context.uid, Published(context.attempt, context.batch_id))

    def _take_back(self, job_id: str, uid: str, attempt: int, batch_id: int) -> None:
        """Removes what attempts before this one have published after a batch.

        A restore of an earlier savepoint, or a start without state, has removed these batches from the history.
        """
        root = HadoopDirectory(SparkSession.active(), self._path)
        for name in root.names():
            number = name.removeprefix(_BATCH)
            if name.startswith(_BATCH) and number.isdecimal() and int(number) > batch_id:
                marker = root.child(name).read_text(_MARKER)
                there = None if marker is None else msgspec.json.decode(marker, type=_FileToken)
                if there is not None and (there.job_id, there.uid) == (job_id, uid) and there.attempt < attempt:
                    root.child(name).delete()

    def _marked(self, job_id: str, uid: str) -> set[Published]:
        """Returns the markers of the last published batches of the sink."""
        if (job_id, uid) not in self._markers:
            names = self._marker_directory(job_id, uid).names()
            self._markers[job_id, uid] = {Published(*map(int, name.split("."))) for name in names}
        return self._markers[job_id, uid]

    def _mark(self, job_id: str, uid: str, published: Published) -> None:
        """Replaces the markers, just before a batch appears.

        A marker tells later that a batch was published, even if a reader has removed its output.
        """
        before, directory = self._marked(job_id, uid), self._marker_directory(job_id, uid)
        directory.touch(f"{published.attempt}.{published.batch_id}")
        self._markers[job_id, uid] = {published}
        for each in before - {published}:
            directory.child(f"{each.attempt}.{each.batch_id}").delete()

    def _marker_directory(self, job_id: str, uid: str) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), self._path).child(_PUBLISHED).child(job_id).child(uid)

    def _target(self, batch_id: int) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), f"{self._path}/{_BATCH}{batch_id}")


@dataclass(frozen=True, slots=True)
class _DirectFiles:
    """Stages files that subtasks write to a local path.

    The directory that the subtasks write to becomes the staged directory.

    It uses Python's file functions, since Hadoop would start a process to set the permissions of each file and
    directory.

    Attributes:
        path: The sink's path.
        root: The same directory, as a local path for the tasks.
        form: The form of the files.
    """

    path: str
    root: str
    form: ParquetForm

    def begin(self, context: SinkContext) -> ParquetOutput:
        """Creates the directory that subtasks write to.

        Raises SinkUnavailableError if the file system fails.
        """
        key = _FileToken.of(context, self.path)
        with file_failures(self.path):
            self._parts(key).mkdir(parents=True)
        return self._output(key)

    def gather(self, token: str, parts: Sequence[str]) -> None:
        """Keeps the parts, and deletes any other file of a task.

        Raises:
            SinkPublishError: A part is missing, as the path is another directory on the task's host.
            SinkUnavailableError: The file system failed.
        """
        key = msgspec.json.decode(token, type=_FileToken)
        complete = set(parts) or {self._output(key).write_empty()}
        staging = Path(self.root, key.staging)
        with file_failures(self.path):
            self._parts(key).rename(staging)  # a late task finds its directory gone
            written = {file.name for file in staging.iterdir()}
            if missing := complete - written:
                raise SinkPublishError(
                    f"{staging} lacks {counted(len(missing), 'file')} of batch {key.batch_id} of sink {key.uid}"
                )
            for name in written - complete:
                (staging / name).unlink()
            (staging / _SUCCESS).touch()
            (staging / _MARKER).write_text(token)

    def _parts(self, key: _FileToken) -> Path:
        return Path(self.root, f"{key.staging}{_PARTS}")

    def _output(self, key: _FileToken) -> ParquetOutput:
        return ParquetOutput(key.text(), str(self._parts(key)), self.form)


def _age(marker: Published) -> tuple[int, int]:
    return marker.attempt, marker.batch_id


def _staging(path: str, key: _FileToken) -> HadoopDirectory:
    return HadoopDirectory(SparkSession.active(), path).child(key.staging)


def _refuse_a_shared_directory(root: HadoopDirectory, context: SinkContext) -> None:
    published = root.child(_PUBLISHED)
    for job_id in sorted(set(published.names()) - {context.job_id}):
        if uids := sorted(published.child(job_id).names()):
            raise SinkOccupiedError(
                f"sink {uids[0]} of job {job_id} writes to {root.path}: give sink {context.uid} its own directory;"
                f" or, if that job will never run again, delete {published.child(job_id).path}"
            )


def _refuse_unless_disowned(marker: str, key: _FileToken, target: HadoopDirectory) -> None:
    there = msgspec.json.decode(marker, type=_FileToken)
    if (there.job_id, there.uid) != (key.job_id, key.uid):
        raise SinkOccupiedError(f"{target.path} holds the output of sink {there.uid} of job {there.job_id}")
    if there.attempt >= key.attempt:
        raise SinkOccupiedError(
            f"{target.path} holds the output of attempt {there.attempt}, which attempt {key.attempt} must not replace"
        )
