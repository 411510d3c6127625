"""An object store in a local directory or shared file system.

Durability: `put` and `create` write a temporary file, fsync it, rename or link it into place and fsync the directory,
so that an acknowledged object survives a power loss. `upload(immutable=True)` hard-links if source and store are on the
same file system: the object then shares its bytes (and its disk) with the local file. A hard link costs nothing and
survives the deletion of the local file, but not a write into the file. RocksDB never writes into a finished SST file.

A folder of the store may belong to a job, which can put anything there at any moment. So every folder is opened step by
step from the root, never through a link, and all work is relative to the open folder. Only a plain file at a valid path
is an object; links, pipes, sockets and other names are ignored.
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
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from keyscale.directory_tree import remove_tree
from keyscale.file_rights import user_name

from .errors import (
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreForbiddenError,
    StoreFullError,
    StoreUnavailableError,
)
from .object_store import (
    TEMPORARY_PREFIX,
    ObjectInfo,
    check_path,
    check_prefix,
    check_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_CHUNK_BYTES = 1 << 20
_FOLDER_TRIES = 10  # creating a folder races with the removal of empty folders
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # a folder may be enterable, but not listable


class LocalObjectStore:
    """Objects as files under a root directory.

    The first write creates the directory.

    Args:
        root: The directory.
        get_bytes_max: The largest object that `get` returns; None: no limit.
    """

    def __init__(self, root: Path, *, get_bytes_max: int | None = None) -> None:
        self._root = root.absolute()
        self.get_bytes_max = get_bytes_max

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, path: str, data: bytes) -> None:
        with _write_failures(path), self._new_file(path) as new:
            new.write(data)
            new.replace()

    def create(self, path: str, data: bytes) -> None:
        with _write_failures(path), self._new_file(path) as new:
            new.write(data)
            try:
                new.link()
            except FileExistsError:
                raise ObjectExistsError(f"there is already an object at {path}") from None

    def get(self, path: str) -> bytes:
        with _failures(path), self._open(path) as file:
            check_size(path, os.fstat(file.fileno()).st_size, self.get_bytes_max)
            if self.get_bytes_max is None:
                return file.read()
            data = file.read(self.get_bytes_max + 1)  # the file may still grow
            check_size(path, len(data), self.get_bytes_max)
            return data

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        with _write_failures(path), self._new_file(path) as new:
            if not (immutable and new.take(source)):
                with source.open("rb") as file:
                    new.fill(file)
            new.replace()

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        with _failures(path), self._open(path) as source:
            receive(source, path, target, size_bytes=size_bytes, sha256=sha256)

    def check(self, path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]) -> None:
        with _failures(path), self._open(path) as source:
            check_content(source, path, size_bytes=size_bytes, sha256=sha256, on_read=on_read)

    def copy(self, source: str, target: str) -> None:
        folder, _, name = check_path(source).rpartition("/")
        with (
            _failures(source),
            self._folder(folder) as parent,
            _opened(name, parent) as file,
            _write_failures(target),
            self._new_file(target) as new,
        ):
            if not new.take(name, parent):  # objects never change in place
                new.fill(file)
            new.replace()

    def head(self, path: str) -> ObjectInfo | None:
        folder, _, name = check_path(path).rpartition("/")
        with _failures(path):
            try:
                with self._folder(folder) as parent:
                    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return _info(path, found) if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        found = []
        with _failures(prefix):
            for folder, _, entries in self._folders(prefix):
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if not path.startswith(prefix) or not _is_object(path, entry):
                        continue
                    if path.encode() > start_after.encode():
                        with contextlib.suppress(FileNotFoundError):  # deleted after the directory was read
                            found.append(_info(path, entry.stat(follow_symlinks=False)))
        return iter(sorted(found, key=lambda info: info.path.encode()))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            folder, _, name = check_path(path).rpartition("/")
            with _failures(path):
                with (
                    contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
                    self._folder(folder) as parent,
                ):
                    os.unlink(name, dir_fd=parent)
                self._remove_empty_folders(folder)

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:
        check_prefix(prefix)
        removed = 0
        with _failures(prefix):
            for folder, parent, entries in self._folders(prefix):
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if not path.startswith(prefix) or _is_object(path, entry) or _is_folder(path, entry):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # the write has ended in the meantime
                        if entry.stat(follow_symlinks=False).st_ctime_ns // 1_000_000 < before_ms:
                            if entry.is_dir(follow_symlinks=False):
                                remove_tree(entry.name, dir_fd=parent)
                            else:
                                os.unlink(entry.name, dir_fd=parent)
                            removed += 1
                self._remove_empty_folders(folder.removesuffix("/"))
        return removed

    def make_private(self, folder: str) -> None:
        """Makes a folder of the root that only this user may enter.

        An existing folder keeps its rights.

        Raises:
            StoreFullError, StoreForbiddenError, StoreUnavailableError: It cannot be made.
        """
        with _write_failures(check_path(folder)), self._folder("", make=True) as root:
            _make_folder(folder, root, mode=0o700)

    @contextmanager
    def _open(self, path: str) -> Iterator[IO[bytes]]:
        folder, _, name = check_path(path).rpartition("/")
        with self._folder(folder) as parent, _opened(name, parent) as file:
            yield file

    @contextmanager
    def _folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """Opens a folder of the store.

        Raises:
            FileNotFoundError: The folder does not exist, and `make` is false.
            NotADirectoryError: Something else is in its place or on the way to it, such as a link.
        """
        if make:
            _make_directory(self._root)
        # The root may be a link: jobs cannot change it.
        descriptor = os.open(self._root, _FOLDER)
        try:
            for name in folder.split("/") if folder else ():
                try:
                    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                except FileNotFoundError:
                    if not make:
                        raise
                    _make_folder(name, descriptor)
                    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _new_file(self, path: str) -> Iterator[_NewFile]:
        folder, _, name = check_path(path).rpartition("/")
        temporary = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        parent, opened = self._begin(folder, temporary)
        with opened:
            try:
                yield _NewFile(parent, temporary, name)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)

    def _begin(self, folder: str, temporary: str) -> tuple[int, contextlib.ExitStack]:
        """Creates a folder with an empty file in it.

        A concurrent delete then cannot remove the folder.

        Returns:
            The folder's descriptor, and a stack that closes it.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for left in reversed(range(_FOLDER_TRIES)):
            with contextlib.ExitStack() as opened:
                try:
                    parent = opened.enter_context(self._folder(folder, make=True))
                    os.close(os.open(temporary, flags, 0o666, dir_fd=parent))
                except FileNotFoundError:  # the empty folder was removed at this moment
                    if not left:
                        raise
                    continue
                return parent, opened.pop_all()
        raise AssertionError  # the last try returns or raises

    def _remove_empty_folders(self, folder: str) -> None:
        while folder:
            above, _, name = folder.rpartition("/")
            try:
                with self._folder(above) as parent:
                    os.rmdir(name, dir_fd=parent)
            except OSError:
                return  # not empty, or already removed: the parent folders stay
            folder = above

    def _folders(self, prefix: str) -> Iterator[tuple[str, int, Sequence[os.DirEntry[str]]]]:
        """Yields the open folders that may hold paths with a prefix.

        Each item is the beginning of the paths in the folder, its descriptor, and its entries. A folder stays open
        until the next item.
        """
        folders = [prefix.rpartition("/")[0]]
        while folders:
            folder = folders.pop()
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                self._folder(folder) as parent,
                _listed(parent) as entries,
            ):
                begin = f"{folder}/" if folder else ""
                for entry in entries:
                    path = f"{begin}{entry.name}"
                    if (path.startswith(prefix) or prefix.startswith(f"{path}/")) and _is_folder(path, entry):
                        folders.append(path)
                yield begin, parent, entries


@dataclass(frozen=True, slots=True)
class _NewFile:
    """A temporary file in an open folder, which will become an object."""

    folder: int
    temporary: str
    name: str

    def write(self, data: bytes) -> None:
        with self._opened() as file:
            file.write(data)

    def fill(self, source: IO[bytes]) -> None:
        with self._opened() as file:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)

    def take(self, source: str | Path, folder: int | None = None) -> bool:
        """Becomes a hard link to a file; returns False if unsupported.

        Raises:
            FileNotFoundError: The source is not a plain file.
        """
        link = f"{self.temporary}-link"
        try:
            os.link(source, link, src_dir_fd=folder, dst_dir_fd=self.folder, follow_symlinks=folder is None)
        except OSError as error:
            if error.errno in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
                return False
            raise
        os.replace(link, self.temporary, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        with _opened(self.temporary, self.folder) as file:
            os.fsync(file.fileno())
        return True

    def link(self) -> None:
        """Makes the file an object if its name is free.

        Raises:
            FileExistsError: The name is taken.
        """
        # Unlike a rename, a link fails if the target exists.
        os.link(self.temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        _sync_folder(self.folder)

    def replace(self) -> None:
        """Makes the file an object in place of whatever has its name."""
        os.replace(self.temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        _sync_folder(self.folder)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.temporary, flags, dir_fd=self.folder), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


def receive(source: IO[bytes], path: str, target: Path, *, size_bytes: int | None, sha256: str | None) -> None:
    """Copies an object's byte stream to a verified local file.

    The file appears complete and verified, or not at all: it is synced before it gets its name.

    Raises:
        ObjectCorruptError: The length or the SHA-256 differs from the given value.
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
        _require(path, received_bytes, digest.hexdigest(), size_bytes=size_bytes, sha256=sha256)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def check_content(
    source: IO[bytes], path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]
) -> None:
    """Verifies an object's byte stream; see `ObjectStore.check`.

    Reads little more than the expected length.

    Raises:
        ObjectCorruptError: The length or the SHA-256 differs from the given value.
    """
    digest, read_bytes = hashlib.sha256(), 0
    while read_bytes <= size_bytes and (chunk := source.read(_CHUNK_BYTES)):
        digest.update(chunk)
        read_bytes += len(chunk)
        on_read(read_bytes)
    if read_bytes > size_bytes:
        raise ObjectCorruptError(f"{path} has more than {size_bytes} bytes")
    _require(path, read_bytes, digest.hexdigest(), size_bytes=size_bytes, sha256=sha256)


def _require(path: str, read_bytes: int, read_sha256: str, *, size_bytes: int | None, sha256: str | None) -> None:
    if size_bytes is not None and read_bytes != size_bytes:
        raise ObjectCorruptError(f"{path} has {read_bytes} bytes instead of {size_bytes}")
    if sha256 is not None and read_sha256 != sha256:
        raise ObjectCorruptError(f"the SHA-256 of {path} differs from the recorded one")


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFoundError(f"no object exists at {path}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"cannot write {path}: {error.strerror}") from error
        if isinstance(error, PermissionError):
            user = user_name(os.geteuid())
            raise StoreForbiddenError(f"user {user} may not use {path} in the local store: {error.strerror}") from error
        raise StoreUnavailableError(f"the local store failed on {path}: {error.strerror}") from error


@contextmanager
def _write_failures(path: str) -> Iterator[None]:
    with _failures(path):
        try:
            yield
        except (NotADirectoryError, IsADirectoryError) as error:
            raise StoreUnavailableError(f"{path} cannot be written: something else has its place") from error


def _opened(name: str, folder: int) -> IO[bytes]:
    """Opens an object in an open folder for reading.

    Raises:
        FileNotFoundError: The object is not a plain file: it may be a link to one of our files, or a pipe, which would
            block the reader forever.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise FileNotFoundError(error.errno, error.strerror) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a plain file")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _listed(folder: int) -> Iterator[Sequence[os.DirEntry[str]]]:
    """Returns the entries of an open folder.

    Their sizes and times can be read while the folder is open.
    """
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(descriptor) as entries:
            listed = list(entries)
        yield listed
    finally:
        os.close(descriptor)


def _is_object(path: str, entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and _is_path(path)


def _is_folder(path: str, entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and _is_path(path)


def _is_path(path: str) -> bool:
    try:
        check_path(path)
    except InvalidObjectPathError:
        return False
    return True


def _info(path: str, found: os.stat_result) -> ObjectInfo:
    # The time of the inode's last change, not of the content's: a new hard link to an old file is a young object.
    return ObjectInfo(path, found.st_size, found.st_ctime_ns // 1_000_000)


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        path.mkdir()
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _make_folder(name: str, parent: int, mode: int = 0o777) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    _sync_folder(parent)


def _sync_folder(folder: int) -> None:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
