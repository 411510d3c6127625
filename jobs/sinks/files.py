"""Files: one directory a batch, which appears by one rename."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql import SparkSession

from jobs.errors import SinkOccupiedError, SinkPublishError
from jobs.hadoop_files import HadoopDirectory, hadoop_settings
from jobs.sinks.parquet_output import PARQUET, ParquetForm, ParquetOutput, file_failures

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from jobs.sinks.contract import DirectStaging, SinkContext

_STAGING = "_staging"  # names that begin with an underscore are no data to any reader of Hadoop files
_MARKER = "_keyscale"  # without an ending, so that no glob for data files finds it
_SUCCESS = "_SUCCESS"  # as Spark's own writer leaves one
_PARTS = "-parts"  # of a staging directory, while subtasks write there
_BATCH = "batch="


class _FileToken(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str

    @classmethod
    def of(cls, context: SinkContext) -> _FileToken:
        return cls(context.job_id, context.uid, context.batch_id, context.attempt, context.unique)

    @property
    def staging(self) -> str:
        """Where the batch is staged, in the sink's path."""
        return f"{_STAGING}/{self.job_id}/{self.uid}/{self.batch_id}-{self.attempt}-{self.unique}"

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class FileSink:
    """Files of any format that Spark writes, one directory a batch: `<path>/batch=<number>/`.

    A batch's directory appears complete, in one rename, after the batch was committed; a batch without rows has one too, so
    a number that is missing was never committed. On an object store a rename is a copy and can be seen half done.
    A job that is restored from an earlier savepoint replaces the directories of the batches that it runs anew.
    Parquet on a local path is written by the subtasks themselves where the sink follows an operator alone, as Spark would.

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
        key = _FileToken.of(context)
        token, staging = key.text(), _staging(self._path, key)
        try:
            frame.write.format(self._format).options(**self._options).save(staging.path)
            staging.write_text(_MARKER, token)
        except Exception:
            with contextlib.suppress(SinkPublishError):  # the first failure is the one to tell
                staging.delete()
            raise
        return token

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        if self._format.lower() != "parquet":
            return None
        spark = SparkSession.active()
        try:
            root = HadoopDirectory(spark, self._path).local_path()
        except SinkPublishError:  # told where the first batch is to be staged
            return None
        of_hadoop = {f"{PARQUET}{name}": value for name, value in hadoop_settings(spark, PARQUET).items()}
        form = ParquetForm.of(schema, self._options, {**of_hadoop, **spark.conf.getAll}, spark.version)
        return None if root is None or form is None else _DirectFiles(self._path, root, form)

    def publish(self, token: str) -> None:
        """Moves a batch from staging into place.

        Raises:
            SinkOccupiedError: Another job's, or a newer attempt's, output is there.
            SinkPublishError: The file system failed, or the staged files are gone.
        """
        key = msgspec.json.decode(token, type=_FileToken)
        staging, target = _staging(self._path, key), self._target(key.batch_id)
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
        staging = _staging(self._path, msgspec.json.decode(token, type=_FileToken))
        parts = HadoopDirectory(staging.spark, f"{staging.path}{_PARTS}")
        if parts.exists() and not parts.move_to(staging):  # a task that comes late finds no directory to write in
            raise SinkPublishError(f"{parts.path} could not be moved")
        staging.delete()

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

    def _target(self, batch_id: int) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), f"{self._path}/{_BATCH}{batch_id}")


@dataclass(frozen=True, slots=True)
class _DirectFiles:
    """Stages what subtasks write on a local path: the directory that they write in becomes the staged one.

    By Python, since Hadoop would start a process for the permissions of each file and directory.

    Attributes:
        path: The sink's.
        root: The same, as tasks open it.
        form: Of the files.
    """

    path: str
    root: str
    form: ParquetForm

    def begin(self, context: SinkContext) -> ParquetOutput:
        """Raises SinkPublishError if the file system failed."""
        key = _FileToken.of(context)
        with file_failures(self.path):
            self._parts(key).mkdir(parents=True)
        return self._output(key)

    def gather(self, token: str, parts: Sequence[str]) -> None:
        """Keeps the parts, and no other file of a task.

        Raises:
            SinkPublishError: The file system failed, or a part is not there: the path is another one on the task's host.
        """
        key = msgspec.json.decode(token, type=_FileToken)
        counted = set(parts) or {self._output(key).write_empty()}
        staging = Path(self.root, key.staging)
        with file_failures(self.path):
            self._parts(key).rename(staging)  # a task that comes late finds no directory to write in
            written = {file.name for file in staging.iterdir()}
            if missing := counted - written:
                raise SinkPublishError(
                    f"{len(missing)} files of batch {key.batch_id} of sink {key.uid} are not in {staging}"
                )
            for name in written - counted:
                (staging / name).unlink()
            (staging / _SUCCESS).touch()
            (staging / _MARKER).write_text(token)

    def _parts(self, key: _FileToken) -> Path:
        return Path(self.root, f"{key.staging}{_PARTS}")

    def _output(self, key: _FileToken) -> ParquetOutput:
        return ParquetOutput(key.text(), str(self._parts(key)), self.form)


def _staging(path: str, key: _FileToken) -> HadoopDirectory:
    return HadoopDirectory(SparkSession.active(), path).child(key.staging)


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
