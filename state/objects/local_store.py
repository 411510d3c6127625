"""An object store in a local directory: the embedded default, for runs on one host or on a shared file system.

Durability: `put` and `create` write a temporary file, fsync it, rename or link it into place and fsync the directory,
so that an acknowledged object survives a power loss. `upload(immutable=True)` hard-links if source and store are on the
same file system: the object then shares its bytes (and its disk) with the local file. This costs nothing and survives
the deletion of the local file, but not a write into it. RocksDB never writes into a finished SST file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from keyscale.state.objects.errors import (
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreFullError,
    StoreUnavailableError,
)
from keyscale.state.objects.object_store import TEMPORARY_PREFIX, ObjectInfo, check_path, check_prefix, check_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_CHUNK_BYTES = 1 << 20
_FOLDER_TRIES = 10  # creating a folder races with the removal of empty ones


class LocalObjectStore:
    """Objects as files under a root directory, which is created when the first object is written.

    Args:
        root: The directory.
        get_bytes_max: The largest object that `get` returns; None: there is no limit.
    """

    def __init__(self, root: Path, *, get_bytes_max: int | None = None) -> None:
        self._root = root.absolute()
        self._get_bytes_max = get_bytes_max

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, path: str, data: bytes) -> None:
        with _failures(path), self._temporary(path) as (temporary, target):
            _write_durably(temporary, data)
            temporary.replace(target)
            _sync_directory(target.parent)

    def create(self, path: str, data: bytes) -> None:
        with _failures(path), self._temporary(path) as (temporary, target):
            _write_durably(temporary, data)
            try:
                os.link(temporary, target)  # unlike rename, fails if the target exists
            except FileExistsError:
                raise ObjectExistsError(f"there is already an object at {path}") from None
            _sync_directory(target.parent)

    def get(self, path: str) -> bytes:
        with _failures(path), _open(self._file(path)) as file:
            check_size(path, os.fstat(file.fileno()).st_size, self._get_bytes_max)
            return file.read()

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        with _failures(path), self._temporary(path) as (temporary, target):
            if not (immutable and _link(source, temporary)):
                shutil.copyfile(source, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_directory(target.parent)

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        with _failures(path), _open(self._file(path)) as source:
            receive(source, path, target, size_bytes=size_bytes, sha256=sha256)

    def copy(self, source: str, target: str) -> None:
        self.upload(self._file(source), target, immutable=True)  # objects never change in place

    def head(self, path: str) -> ObjectInfo | None:
        with _failures(path):
            try:
                found = self._file(path).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return _info(path, found) if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        found = []
        with _failures(prefix):
            for path, file in self._files(folder, prefix):
                if not path.rpartition("/")[2].startswith(TEMPORARY_PREFIX) and path.encode() > start_after.encode():
                    with contextlib.suppress(FileNotFoundError):  # deleted after the directory was read
                        found.append(_info(path, file.stat(follow_symlinks=False)))
        return iter(sorted(found, key=lambda info: info.path.encode()))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            file = self._file(path)
            with _failures(path):
                file.unlink(missing_ok=True)
                self._remove_empty_folders(file.parent)

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        removed = 0
        with _failures(prefix):
            for path, file in list(self._files(folder, prefix)):
                if not path.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):  # the write has ended in the meantime
                    if file.stat(follow_symlinks=False).st_ctime_ns // 1_000_000 < before_ms:
                        Path(file.path).unlink()
                        removed += 1
                        self._remove_empty_folders(Path(file.path).parent)
        return removed

    def _file(self, path: str) -> Path:
        return self._root / check_path(path)

    @contextmanager
    def _temporary(self, path: str) -> Iterator[tuple[Path, Path]]:
        target = self._file(path)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        for _ in range(_FOLDER_TRIES):
            self._make_folder(target.parent)
            try:
                temporary.touch(exist_ok=False)  # from now on a concurrent delete cannot remove the folder
            except FileNotFoundError:
                continue
            break
        try:
            yield temporary, target
        finally:
            temporary.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()
        with contextlib.suppress(FileNotFoundError):
            _sync_directory(folder.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self._root and folder.is_relative_to(self._root):
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or already removed: in both cases the parent folders stay
            folder = folder.parent

    def _files(self, folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Returns all files, temporary ones too, whose paths start with a prefix."""
        try:
            entries = list(os.scandir(self._root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if path.startswith(prefix) or prefix.startswith(f"{path}/"):
                    yield from self._files(path, prefix)
            elif path.startswith(prefix):
                yield path, entry


def receive(source: IO[bytes], path: str, target: Path, *, size_bytes: int | None, sha256: str | None) -> None:
    """Copies an object's byte stream to a local file, which appears complete and verified, or not at all.

    It is on disk before it has its name, so that no power loss leaves a file that only looks complete.

    Raises:
        ObjectCorruptError: The length or the SHA-256 differs from the one given.
    """
    temporary = target.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    digest = hashlib.sha256()
    received_bytes = 0
    try:
        with temporary.open("wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                received_bytes += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if size_bytes is not None and received_bytes != size_bytes:
            raise ObjectCorruptError(f"{path} has {received_bytes} bytes instead of {size_bytes}")
        if sha256 is not None and digest.hexdigest() != sha256:
            raise ObjectCorruptError(f"the SHA-256 of {path} differs from the recorded one")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFoundError(f"there is no object at {path}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"cannot write {path}: {error.strerror}") from error
        raise StoreUnavailableError(f"the local store failed on {path}: {error.strerror}") from error


def _open(file: Path) -> IO[bytes]:
    """Opens an object for reading.

    A directory may belong to a job, which could put something else there: a link to a file of ours, or a pipe, from
    which a reader would wait forever. None of these is an object.

    Raises:
        FileNotFoundError: There is no plain file.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise FileNotFoundError(error.errno, error.strerror) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no file")
    return os.fdopen(descriptor, "rb")


def _info(path: str, found: os.stat_result) -> ObjectInfo:
    # The time of the inode's last change, not of the content's: a hard link to an old file is a young object.
    return ObjectInfo(path, found.st_size, found.st_ctime_ns // 1_000_000)


def _write_durably(file: Path, data: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _link(source: Path, target: Path) -> bool:
    """Hard-links target to source; returns False if the file systems do not allow it."""
    sibling = target.with_name(f"{target.name}-link")
    try:
        os.link(source, sibling)
        sibling.replace(target)
    except OSError as error:
        if error.errno in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
            return False
        raise
    return True


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
