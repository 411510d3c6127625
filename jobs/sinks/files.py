"""Files: one directory a batch, which appears by one rename."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql import SparkSession

from jobs.errors import SinkOccupiedError, SinkPublishError
from jobs.hadoop_files import HadoopDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobs.sinks.contract import SinkContext

_STAGING = "_staging"  # names that begin with an underscore are no data to any reader of Hadoop files
_MARKER = "_keyscale"  # without an ending, so that no glob for data files finds it
_BATCH = "batch="


class _FileToken(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str


class FileSink:
    """Files of any format that Spark writes, one directory a batch: `<path>/batch=<number>/`.

    A batch's directory appears complete, in one rename, after the batch was committed; a batch without rows has one too, so
    a number that is missing was never committed. On an object store a rename is a copy and can be seen half done.
    A job that is restored from an earlier savepoint replaces the directories of the batches that it runs anew.

    Args:
        path: A directory of its own for each job and sink, at any address that Spark can write to.
        format: parquet, json, csv, orc, ... with further `options` as of DataFrameWriter.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(self, path: str, format: str = "parquet", **options: str | bool | int) -> None:  # noqa: A002 - Spark's name
        self._path = path
        self._format = format
        self._options = options

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        key = _FileToken(context.job_id, context.uid, context.batch_id, context.attempt, context.unique)
        token = msgspec.json.encode(key).decode()
        staging = self._staging(key)
        try:
            frame.write.format(self._format).options(**self._options).save(staging.path)
            staging.write_text(_MARKER, token)
        except Exception:
            with contextlib.suppress(SinkPublishError):  # the first failure is the one to tell
                staging.delete()
            raise
        return token

    def publish(self, token: str) -> None:
        """Moves a batch from staging into place.

        Raises:
            SinkOccupiedError: Another job's, or a newer attempt's, output is there.
            SinkPublishError: The file system failed, or the staged files are gone.
        """
        key = msgspec.json.decode(token, type=_FileToken)
        staging, target = self._staging(key), self._target(key.batch_id)
        if target.exists():
            there = target.read_text(_MARKER)
            if there == token and not staging.exists():
                return
            if there is not None and there != token:
                _refuse_unless_disowned(there, key, target)
                target.delete()
        if not staging.exists():
            message = f"the staged files of batch {key.batch_id} of sink {key.uid} are neither staged nor published"
            raise SinkPublishError(message)
        if target.exists():
            # An object store's rename was cut short: it copies first and deletes afterwards, so staging is complete.
            target.delete()
        if not staging.move_to(target) and target.read_text(_MARKER) != token:
            message = f"batch {key.batch_id} of sink {key.uid} could not be moved into place"
            raise SinkPublishError(message)

    def discard(self, token: str) -> None:
        self._staging(msgspec.json.decode(token, type=_FileToken)).delete()

    def recover(self, context: SinkContext) -> None:
        root = HadoopDirectory(SparkSession.active(), self._path)
        staging = root.child(_STAGING).child(context.job_id).child(context.uid)
        for name in staging.names():
            if int(name.split("-")[1]) < context.attempt:
                staging.child(name).delete()
        for name in root.names():
            number = name.removeprefix(_BATCH)
            if name.startswith(_BATCH) and number.isdecimal() and int(number) > context.batch_id:
                self._remove_disowned(root.child(name), context)

    def _remove_disowned(self, directory: HadoopDirectory, context: SinkContext) -> None:
        """Removes a published batch that the job's history no longer contains, as it went back to an earlier savepoint."""
        marker = directory.read_text(_MARKER)
        if marker is None:
            return
        there = msgspec.json.decode(marker, type=_FileToken)
        if (there.job_id, there.uid) == (context.job_id, context.uid) and there.attempt < context.attempt:
            directory.delete()

    def _staging(self, key: _FileToken) -> HadoopDirectory:
        name = f"{key.batch_id}-{key.attempt}-{key.unique}"
        return HadoopDirectory(SparkSession.active(), f"{self._path}/{_STAGING}/{key.job_id}/{key.uid}/{name}")

    def _target(self, batch_id: int) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), f"{self._path}/{_BATCH}{batch_id}")


def _refuse_unless_disowned(marker: str, key: _FileToken, target: HadoopDirectory) -> None:
    there = msgspec.json.decode(marker, type=_FileToken)
    if (there.job_id, there.uid) != (key.job_id, key.uid):
        message = f"{target.path} holds the output of sink {there.uid} of job {there.job_id}"
        raise SinkOccupiedError(message)
    if there.attempt >= key.attempt:
        message = (
            f"{target.path} holds the output of attempt {there.attempt}, which attempt {key.attempt} may not replace"
        )
        raise SinkOccupiedError(message)
