"""Files and directories in any file system that Spark can write to.

It uses Hadoop's file system API, so that any scheme works.

It relies on py4j, PySpark's private connection to the JVM (since Spark 0.7): `SparkSession._jvm` for Hadoop's classes,
`SparkSession._jsc` for Spark's Hadoop configuration, and the exceptions that both raise for a failure in the JVM. A
Spark Connect session lacks all of these.

It has no switch: the file sink and the Kafka sink stage their output with it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it publishes no types
from pyspark.errors.exceptions.captured import CapturedException

from keyscale.file_rights import missing_right

from ..errors import SinkForbiddenError, SinkPublishError, SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

_FAILURE = "java.io.IOException"
_REFUSALS = frozenset(
    {
        "java.io.FileNotFoundException",
        "org.apache.hadoop.fs.FileAlreadyExistsException",
        "org.apache.hadoop.fs.ParentNotDirectoryException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
    }
)
"""Permanent failures."""
_FORBIDDEN = frozenset(
    {
        "java.nio.file.AccessDeniedException",
        "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException",
        "org.apache.hadoop.security.AccessControlException",
    }
)
"""Failures for want of a right."""
_LOCAL_REFUSALS = (FileNotFoundError, NotADirectoryError)


def missing_files(spark: SparkSession, paths: Iterable[str]) -> list[str]:
    """Returns the files that do not exist."""
    return [path for path in paths if not HadoopDirectory(spark, path).exists()]


@contextlib.contextmanager
def file_failures(path: str) -> Iterator[None]:
    """Converts the operating system's errors below a path to Keyscale errors.

    Raises:
        SinkForbiddenError: The process's user lacks a right.
        SinkPublishError: The file system refuses; waiting would not help.
        SinkUnavailableError: The file system failed, for example because it is full.
    """
    try:
        yield
    except PermissionError as failure:
        reason = missing_right(failure.filename or path) or f"{failure.filename or path}: {failure.strerror}"
        raise SinkForbiddenError(reason) from failure
    except OSError as failure:
        kind = SinkPublishError if isinstance(failure, _LOCAL_REFUSALS) else SinkUnavailableError
        raise kind(f"the file system of {path} failed: {failure.strerror or type(failure).__name__}") from failure


@dataclass(frozen=True, slots=True)
class HadoopDirectory:
    """A directory in any file system that Spark is configured for.

    The directory may or may not exist.

    Every method raises SinkUnavailableError if the file system fails, SinkPublishError if the file system refuses, and
    SinkForbiddenError if it refuses for want of a right.
    """

    spark: SparkSession
    path: str

    def child(self, name: str) -> HadoopDirectory:
        return HadoopDirectory(self.spark, f"{self.path.rstrip('/')}/{name}")

    def local_path(self) -> str | None:
        """Returns its absolute path in the local file system.

        Returns None if Python cannot open the directory.
        """
        return self._call(_local_path)  # type: ignore[no-any-return]  # py4j publishes no types

    def exists(self) -> bool:
        return bool(self._call(lambda files, path: files.exists(path)))

    def make(self) -> None:
        self._call(lambda files, path: files.mkdirs(path))

    def delete(self) -> None:
        """Deletes the directory with its content, if it exists."""
        self._call(lambda files, path: files.delete(path, True))

    def names(self) -> list[str]:
        """Returns the names in the directory; none if it does not exist."""
        return [status.getPath().getName() for status in self._call(_children)]

    def move_to(self, target: HadoopDirectory) -> bool:
        """Renames the directory; returns False if the file system declined.

        The rename is atomic on a file system, a copy on an object store.
        """
        return bool(self._call(lambda files, path: files.rename(path, target._hadoop_path())))

    def read_text(self, name: str) -> str | None:
        """Returns the content of a small file, if the file exists."""
        child = self.child(name)
        return child._call(child._read) if child.exists() else None

    def write_text(self, name: str, text: str) -> None:
        child = self.child(name)
        child._call(lambda files, path: _write(files.create(path, True), text))

    def touch(self, name: str) -> None:
        """Creates an empty file in the directory, and the directory itself."""
        local = self.local_path()
        if local is None:
            child = self.child(name)
            child._call(lambda files, path: files.create(path, True).close())
            return
        # Hadoop would start a process to set permissions.
        with file_failures(self.path):
            Path(local).mkdir(parents=True, exist_ok=True)
            Path(local, name).touch()

    def require_right(self) -> None:
        """Refuses a local directory that the process's user may not write to.

        Hadoop says only that it failed there. Other file systems name a missing right themselves.
        """
        local = self.local_path()
        if local is not None and (reason := missing_right(local)) is not None:
            raise SinkForbiddenError(reason)

    def _read(self, files: Any, path: Any) -> str:
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _call(self, action: Callable[[Any, Any], Any]) -> Any:
        path = self._hadoop_path()
        try:
            return action(path.getFileSystem(self.spark._jsc.hadoopConfiguration()), path)
        except (Py4JJavaError, CapturedException) as failure:
            if not isinstance(failure, Py4JJavaError):
                raise SinkPublishError(f"the file system of {self.path} refuses: {failure}") from failure
            kinds = set(_kinds(failure.java_exception))
            is_refusal = _FAILURE not in kinds or kinds & _REFUSALS
            described = f"the file system of {self.path} failed: {failure.java_exception.toString()}"
            if kinds & _FORBIDDEN:
                raise SinkForbiddenError(described) from failure
            raise (SinkPublishError if is_refusal else SinkUnavailableError)(described) from failure

    def _hadoop_path(self) -> Any:
        return _path_class(self.spark._jvm)(self.path)


def hadoop_settings(spark: SparkSession, prefix: str) -> dict[str, str]:
    """Returns Hadoop's settings with a prefix, without the prefix."""
    return dict(spark._jsc.hadoopConfiguration().getPropsWithPrefix(prefix))


@lru_cache(maxsize=2)
def _path_class(jvm: Any) -> Any:
    """Returns Hadoop's Path in a JVM.

    Finding it takes a round trip per package, and a batch creates many paths.
    """
    return jvm.org.apache.hadoop.fs.Path


def _kinds(java_exception: Any) -> Iterator[str]:
    """Yields the names of an exception's class and its superclasses."""
    kind = java_exception.getClass()
    while kind is not None:
        yield kind.getName()
        kind = kind.getSuperclass()


def _local_path(files: Any, path: Any) -> str | None:
    qualified = files.makeQualified(path).toUri()
    return qualified.getPath() if qualified.getScheme() == "file" else None


def _children(files: Any, path: Any) -> list[Any]:
    return list(files.listStatus(path)) if files.exists(path) else []


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text.encode())
    finally:
        stream.close()
