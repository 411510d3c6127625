"""A directory of Hadoop's is used through its file system, whose failures are told apart by their classes."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it publishes no types

from keyscale.jobs.errors import SinkForbiddenError, SinkPublishError, SinkUnavailableError
from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory, file_failures, hadoop_settings, missing_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IO = "java.io.IOException"


class JavaPath:
    def __init__(self, text: str, files: Files) -> None:
        self.text = text
        self._files = files

    def getFileSystem(self, settings: object) -> Files:  # noqa: N802 - Java's names, as below
        assert settings == "settings"
        return self._files

    def getName(self) -> str:  # noqa: N802
        return self.text.rpartition("/")[2]

    def toUri(self) -> Any:  # noqa: N802
        return self

    def getPath(self) -> str:  # noqa: N802
        return self.text.partition("://")[2]

    def getScheme(self) -> str:  # noqa: N802
        return self.text.partition("://")[0]


class Stream:
    def __init__(self, files: Files, at: str) -> None:
        self._files = files
        self._at = at
        files.open_streams += 1

    def readAllBytes(self) -> bytes:  # noqa: N802
        return self._files.content[self._at]

    def write(self, data: bytes) -> None:
        if self._files.is_full:
            raise OSError
        self._files.content[self._at] = data

    def close(self) -> None:
        self._files.open_streams -= 1


class Files:
    """A file system of Hadoop's, which may fail."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.failure: Exception | None = None
        self.open_streams = 0
        self.is_full = False

    def exists(self, path: JavaPath) -> bool:
        if self.failure is not None:
            raise self.failure
        return any(name == path.text or name.startswith(f"{path.text}/") for name in self.content)

    def mkdirs(self, path: JavaPath) -> None:
        self.content[f"{path.text}/"] = b""

    def delete(self, path: JavaPath, recursive: bool) -> None:
        assert recursive
        self.content = {n: data for n, data in self.content.items() if not (n + "/").startswith(f"{path.text}/")}

    def listStatus(self, path: JavaPath) -> list[Any]:  # noqa: N802
        names = {name.removeprefix(f"{path.text}/").split("/")[0] for name in self.content if path.text in name}
        return [SimpleNamespace(getPath=lambda n=n: JavaPath(n, self)) for n in sorted(names) if n]

    def rename(self, path: JavaPath, target: JavaPath) -> bool:
        if not self.exists(path):
            return False
        self.content = {name.replace(path.text, target.text, 1): data for name, data in self.content.items()}
        return True

    def open(self, path: JavaPath) -> Stream:
        return Stream(self, path.text)

    def create(self, path: JavaPath, overwrite: bool) -> Stream:
        assert overwrite
        self.content[path.text] = b""
        return Stream(self, path.text)

    def makeQualified(self, path: JavaPath) -> JavaPath:  # noqa: N802
        return path if "://" in path.text else JavaPath(f"file://{path.text}", self)


class Settings(str):
    __slots__ = ()

    def getPropsWithPrefix(self, prefix: str) -> dict[str, str]:  # noqa: N802
        return {"codec": prefix}


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def at(files: Files) -> Callable[[str], HadoopDirectory]:
    fs = SimpleNamespace(Path=lambda text: JavaPath(text, files))
    org = SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=fs)))
    jsc = SimpleNamespace(hadoopConfiguration=lambda: Settings("settings"))

    class Jvm:
        """Py4j's view, which can be a key."""

    jvm: Any = Jvm()
    jvm.org = org
    spark = SimpleNamespace(_jvm=jvm, _jsc=jsc)
    return lambda path: HadoopDirectory(cast("Any", spark), path)


def failure(*kinds: str) -> Exception:
    """Returns an exception of Java's, given its class and superclasses."""
    kind: Any = None
    for name in reversed(kinds):
        kind = SimpleNamespace(getName=lambda name=name: name, getSuperclass=lambda above=kind: above)
    java = SimpleNamespace(
        getClass=lambda: kind, toString=lambda: f"{kinds[0]}: why", _target_id="o1", _gateway_client=None
    )
    found = Py4JJavaError.__new__(Py4JJavaError)
    found.java_exception = java
    return cast("Exception", found)


def test_a_directory_is_written_read_moved_and_deleted(files: Files, at: Callable[[str], HadoopDirectory]) -> None:
    root = at("s3://bucket/out/")
    staged = root.child("a").child("b")
    assert staged.path == "s3://bucket/out/a/b"
    assert (staged.exists(), staged.names(), staged.read_text("x")) == (False, [], None)
    staged.write_text("x", "é")
    staged.touch("done")
    assert (staged.exists(), staged.names(), staged.read_text("x")) == (True, ["done", "x"], "é")
    assert files.open_streams == 0
    assert missing_files(root.spark, [f"{staged.path}/x", f"{staged.path}/y"]) == [f"{staged.path}/y"]
    assert root.child("gone").move_to(root.child("c")) is False
    assert staged.move_to(root.child("c")) is True
    assert (staged.exists(), root.child("c").read_text("x")) == (False, "é")
    root.child("c").delete()
    assert files.content == {}
    root.child("d").make()
    assert root.child("d").exists()
    assert hadoop_settings(root.spark, "parquet.") == {"codec": "parquet."}
    files.is_full = True
    with pytest.raises(OSError, match=r"^$"):
        root.write_text("x", "y")
    assert files.open_streams == 0, "the file is closed"


def test_only_a_path_of_files_is_local(
    files: Files, at: Callable[[str], HadoopDirectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at("s3://bucket/out").local_path() is None
    assert at(f"{tmp_path}/out").local_path() == at(f"file://{tmp_path}/out").local_path() == f"{tmp_path}/out"
    at(f"{tmp_path}/out").touch("done")
    assert (tmp_path / "out" / "done").is_file()
    assert files.content == {}, "Hadoop was not asked"
    at("s3://bucket/out").require_right()
    at(f"{tmp_path}/out").require_right()
    monkeypatch.setattr("keyscale.jobs.spark_internals.hadoop_files.missing_right", lambda path: f"no right to {path}")
    at("s3://bucket/out").require_right()
    with pytest.raises(SinkForbiddenError, match=f"no right to {tmp_path}/out"):
        at(f"{tmp_path}/out").require_right()


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((IO,), SinkUnavailableError),
        (("java.net.ConnectException", "java.net.SocketException", IO), SinkUnavailableError),
        (("java.io.FileNotFoundException", IO), SinkPublishError),
        (("org.apache.hadoop.fs.FileAlreadyExistsException", IO), SinkPublishError),
        (("org.apache.hadoop.fs.ParentNotDirectoryException", IO), SinkPublishError),
        (("org.apache.hadoop.fs.UnsupportedFileSystemException", IO), SinkPublishError),
        (("java.lang.IllegalArgumentException", "java.lang.RuntimeException"), SinkPublishError),
        (("java.nio.file.AccessDeniedException", "java.nio.file.FileSystemException", IO), SinkForbiddenError),
        (("org.apache.hadoop.security.AccessControlException", IO), SinkForbiddenError),
        (("org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException", IO), SinkForbiddenError),
    ],
)
def test_a_failure_is_an_outage_a_refusal_or_a_missing_right_by_its_classes(
    files: Files, at: Callable[[str], HadoopDirectory], kinds: tuple[str, ...], expected: type[Exception]
) -> None:
    files.failure = failure(*kinds)
    with pytest.raises(expected, match=f"the file system of s3://bucket/out failed: {kinds[0]}: why") as raised:
        at("s3://bucket/out").exists()
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), SinkUnavailableError, "of /out failed: No space left"),
        (OSError(), SinkUnavailableError, "of /out failed: OSError"),
        (FileNotFoundError(errno.ENOENT, "No such file"), SinkPublishError, "of /out failed: No such file"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), SinkPublishError, "Not a directory"),
        (PermissionError(errno.EACCES, "denied", "/proc"), SinkForbiddenError, "/proc"),
    ],
)
def test_a_failure_of_the_operating_system_is_told_by_its_kind(
    error: OSError, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message) as raised, file_failures("/out"):
        raise error
    assert type(raised.value) is expected
