"""The operators of a Flink savepoint, from its file `_metadata`.

The format is that of Flink's `MetadataV3Serializer` and its followers up to version 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import FlinkSavepointError, ImportUnsupportedError
from .java_data import JavaData

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METADATA = "_metadata"
_MAGIC = 0x4960672D
_VERSIONS = range(3, 7)
_VERSION_WITH_NAMES = 5
_MASTER_MAGIC = 0xC96B1696 - (1 << 32)
_MAX_PARALLELISM = 32768
_NO_HANDLE = 0
_INLINE = 1
_FILE = 2
_OPERATOR_STATE = 4
_RELATIVE_FILE = 6
_KEY_GROUPS_OF_SAVEPOINT = 7
_INCREMENTAL = (5, 11)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StateFile:
    """The bytes of a part of the state.

    They are in a file, or in the metadata itself.

    Attributes:
        path: The file; None: the bytes are `data`.
        data: The bytes.
    """

    path: Path | None
    data: bytes = b""

    def open(self) -> BinaryIO:
        """Opens the bytes.

        Raises:
            FlinkSavepointError: The file is missing or cannot be read.
        """
        if self.path is None:
            return BytesIO(self.data)
        try:
            return self.path.open("rb")
        except OSError as error:
            raise FlinkSavepointError(f"the savepoint lacks the file {self.path.name}: {error.strerror}") from None

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return len(self.data) if self.path is None else self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class KeyGroupsFile:
    """The keyed state of one subtask.

    Attributes:
        file: The bytes.
        offsets: Where each key group begins, by key group; without empty ones.
    """

    file: StateFile
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ElementsFile:
    """The operator state of one subtask.

    Attributes:
        file: The bytes.
        offsets: Where each element of a state begins, by the state's name.
    """

    file: StateFile
    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FlinkOperator:
    """An operator of a Flink job.

    Attributes:
        id: Its id, in hexadecimal digits: the hash of its uid.
        uid: Its uid; empty if the savepoint does not have it.
        parallelism: Its parallelism.
        max_parallelism: The number of its key groups.
        keyed: The keyed state of its subtasks.
        elements: The operator state of its subtasks.
        problem: Why its keyed state cannot be read; empty if it can.
    """

    id: str
    uid: str
    parallelism: int
    max_parallelism: int
    keyed: tuple[KeyGroupsFile, ...]
    elements: tuple[ElementsFile, ...]
    problem: str = ""


def read_metadata(location: str) -> tuple[FlinkOperator, ...]:
    """Returns the operators of a savepoint.

    Args:
        location: The directory of the savepoint, or its file `_metadata`: a path or a URL of `file:`.

    Raises:
        FlinkSavepointError: The directory is no savepoint, or its metadata is damaged.
        ImportUnsupportedError: The savepoint has an unknown version, or unaligned records.
    """
    directory = _directory(location)
    path = directory / METADATA
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            return tuple(_operators(JavaData(stream, size), directory))
    except OSError as error:
        raise FlinkSavepointError(f"{location} has no file {METADATA} that can be read: {error.strerror}") from None


def operator_id(uid: str) -> str:
    """Returns the id that Flink derives from an operator's uid.

    Flink's `StreamGraphHasherV2` has the same hash.
    """
    return _murmur3(uid.encode()).hex()


def _directory(location: str) -> Path:
    if "://" in location and not location.startswith("file://"):
        raise ImportUnsupportedError(f"{location} is not on this host; copy the savepoint to a directory")
    path = Path(location.removeprefix("file://").removeprefix("file:"))
    return path.parent if path.name == METADATA else path


def _operators(data: JavaData, directory: Path) -> Iterator[FlinkOperator]:
    if data.is_at_end or data.int32() != _MAGIC:
        raise FlinkSavepointError(f"{METADATA} is not the metadata of a savepoint")
    version = data.int32()
    if version not in _VERSIONS:
        raise ImportUnsupportedError(f"the savepoint has version {version} of the metadata; 3 to 6 can be read")
    data.int64()  # the number of the checkpoint
    for _ in range(data.count()):
        if data.int32() != _MASTER_MAGIC:
            raise FlinkSavepointError("the metadata is damaged in the state of the master")
        data.block()
    for _ in range(data.count()):
        yield _operator(data, directory, has_names=version >= _VERSION_WITH_NAMES)


def _operator(data: JavaData, directory: Path, *, has_names: bool) -> FlinkOperator:
    _, uid = (data.utf(), data.utf()) if has_names else ("", "")
    number = data.read(16).hex()
    parallelism, max_parallelism = data.int32(), data.int32()
    if not 0 < max_parallelism <= _MAX_PARALLELISM:
        raise FlinkSavepointError(f"the metadata is damaged: operator {number} has {max_parallelism} key groups")
    _state_file(data, directory)  # the state of the coordinator
    keyed: list[KeyGroupsFile] = []
    elements: list[ElementsFile] = []
    problems: list[str] = []
    for _ in range(max(data.int32(), 0)):  # negative: the operator has finished
        if data.int32() < 0:  # the subtask has finished
            continue
        elements.extend(_elements(data, directory) if data.int32() else ())
        if data.int32():
            list(_elements(data, directory))  # raw state
        keyed.extend(_keyed(data, directory, number, max_parallelism))
        if list(_keyed(data, directory, number, max_parallelism)):
            problems.append("it has raw keyed state, such as timers of an old Flink")
        if data.int32() or data.int32():
            raise ImportUnsupportedError("the savepoint has records that were on their way; take a canonical savepoint")
    return FlinkOperator(
        number, uid, parallelism, max_parallelism, tuple(keyed), tuple(elements), problems[0] if problems else ""
    )


def _keyed(data: JavaData, directory: Path, operator: str, max_parallelism: int) -> Iterator[KeyGroupsFile]:
    kind = data.uint8()
    if kind == _NO_HANDLE:
        return
    if kind != _KEY_GROUPS_OF_SAVEPOINT:
        form = "RocksDB's own files" if kind in _INCREMENTAL else "the form of a checkpoint or of a native savepoint"
        raise ImportUnsupportedError(f"operator {operator} has its state in {form}; take a canonical savepoint")
    first, count = data.int32(), data.count()
    if first < 0 or first + count > max_parallelism:
        raise FlinkSavepointError(f"the metadata is damaged: operator {operator} has key groups beyond its last one")
    offsets = {first + place: data.int64() for place in range(count)}
    file = _state_file(data, directory)
    if file is not None:
        yield KeyGroupsFile(file, {key_group: offset for key_group, offset in offsets.items() if offset})


def _elements(data: JavaData, directory: Path) -> Iterator[ElementsFile]:
    kind = data.uint8()
    if kind == _NO_HANDLE:
        return
    if kind != _OPERATOR_STATE:
        raise ImportUnsupportedError(f"the savepoint has operator state in an unknown form ({kind})")
    offsets = {}
    for _ in range(data.count()):
        name = data.utf()
        data.uint8()  # how the elements are distributed
        offsets[name] = tuple(data.int64() for _ in range(data.count()))
    file = _state_file(data, directory)
    if file is not None:
        yield ElementsFile(file, offsets)


def _state_file(data: JavaData, directory: Path) -> StateFile | None:
    kind = data.uint8()
    if kind == _NO_HANDLE:
        return None
    if kind == _INLINE:
        data.utf()
        return StateFile(None, data.block())
    if kind == _FILE:
        data.int64()
        return StateFile(_inside(directory, data.utf().rpartition("/")[2]))
    if kind != _RELATIVE_FILE:
        raise ImportUnsupportedError(f"the savepoint has a file in an unknown form ({kind})")
    name = data.utf()
    data.int64()
    return StateFile(_inside(directory, name))


def _inside(directory: Path, name: str) -> Path:
    """Returns a file of the savepoint.

    A damaged or forged savepoint must not name other files of this host.

    Raises:
        FlinkSavepointError: The file is in another directory.
    """
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise FlinkSavepointError("the metadata is damaged: a file of the savepoint is outside of its directory")
    return directory / name


def _murmur3(data: bytes) -> bytes:
    """Returns the hash MurmurHash3 x64 of 128 bits with the seed 0."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for place in range(0, whole, 16):
        k1, k2 = (int.from_bytes(data[at : at + 8], "little") for at in (place, place + 8))
        h1 ^= _rotated(k1 * c1 & _MASK, 31) * c2 & _MASK
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotated(k2 * c2 & _MASK, 33) * c1 & _MASK
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:].ljust(16, b"\0")
    k1, k2 = int.from_bytes(tail[:8], "little"), int.from_bytes(tail[8:], "little")
    h2 ^= _rotated(k2 * c2 & _MASK, 33) * c1 & _MASK
    h1 ^= _rotated(k1 * c1 & _MASK, 31) * c2 & _MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return h1.to_bytes(8, "little") + h2.to_bytes(8, "little")


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mixed(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
