"""Files and directories wherever Spark can write: through Hadoop's own file system API, so that any scheme works."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it publishes no types
from pyspark.errors.exceptions.captured import CapturedException

from jobs.errors import SinkPublishError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class HadoopDirectory:
    """A directory that may or may not exist, in any file system that Spark is configured for.

    Every method raises SinkPublishError if the file system fails.
    """

    spark: SparkSession
    path: str

    def child(self, name: str) -> HadoopDirectory:
        return HadoopDirectory(self.spark, f"{self.path.rstrip('/')}/{name}")

    def local_path(self) -> str | None:
        """Its absolute path if it is in the local file system, whose paths Python can open; else None."""
        return self._call(_local_path)  # type: ignore[no-any-return]  # py4j publishes no types

    def exists(self) -> bool:
        return bool(self._call(lambda files, path: files.exists(path)))

    def make(self) -> None:
        self._call(lambda files, path: files.mkdirs(path))

    def delete(self) -> None:
        """Deletes it and all in it; it may be absent."""
        self._call(lambda files, path: files.delete(path, True))

    def names(self) -> list[str]:
        """Names of what is in it; none if it is absent."""
        return [status.getPath().getName() for status in self._call(_children)]

    def move_to(self, target: HadoopDirectory) -> bool:
        """Renames it; False if the file system declined. One atomic step on a file system, a copy on an object store."""
        return bool(self._call(lambda files, path: files.rename(path, target._java_path())))

    def read_text(self, name: str) -> str | None:
        """Content of a small file in it; None if there is none."""
        child = self.child(name)
        return child._call(child._read) if child.exists() else None

    def write_text(self, name: str, text: str) -> None:
        child = self.child(name)
        child._call(lambda files, path: _write(files.create(path, True), text))

    def _read(self, files: Any, path: Any) -> str:
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _call(self, action: Callable[[Any, Any], Any]) -> Any:
        path = self._java_path()
        try:
            return action(path.getFileSystem(self.spark._jsc.hadoopConfiguration()), path)
        except (Py4JJavaError, CapturedException) as failure:
            told = failure.java_exception.toString() if isinstance(failure, Py4JJavaError) else failure
            message = f"the file system of {self.path} failed: {told}"
            raise SinkPublishError(message) from failure

    def _java_path(self) -> Any:
        return _path_class(self.spark._jvm)(self.path)


def hadoop_settings(spark: SparkSession, prefix: str) -> dict[str, str]:
    """The settings of Hadoop whose names begin with `prefix`, which is left out of them."""
    return dict(spark._jsc.hadoopConfiguration().getPropsWithPrefix(prefix))


@lru_cache(maxsize=2)
def _path_class(jvm: Any) -> Any:
    """Hadoop's Path in a JVM: to find a class by its name takes a round trip a package, and a batch makes many paths."""
    return jvm.org.apache.hadoop.fs.Path


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
