"""The object store, played in memory: strongly consistent, with conditional creates, and with every fault of a network.

`StoreModel` is the store itself, which outlives all processes and keeps the whole history of its objects for the
auditor. `StoreClient` is a process's way to it: requests take time and may be lost, refused, applied without an answer,
or applied long after the client has given up.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from keyscale.state.objects.errors import (
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from keyscale.state.objects.object_store import ObjectInfo, check_path, check_prefix, check_size

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.simulation.world import Process, World

URL = "s3://simulation/store"
LATENCY_SECONDS = 0.004
TIMEOUT_SECONDS = 5.0


class Fate(Enum):
    """What becomes of one request."""

    WELL = "well"
    NOT_APPLIED = "not applied"
    ANSWER_LOST = "answer lost"
    APPLIED_LATE = "applied late"
    SLOW = "slow"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Stored:
    """An object."""

    data: bytes
    modified_ms: int


@dataclass(slots=True)
class StoreModel:
    """The store.

    Attributes:
        objects: What is there now.
        written: Every object that ever was, by path, with its last content.
        faults: How often, per request, each fate comes.
        is_away: Whether it answers nobody.
        honours_condition: Whether a conditional create looks whether there is an object; a control switches it off.
        on_delete: Called with each path before it is deleted.
    """

    world: World
    objects: dict[str, Stored] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)
    faults: dict[Fate, float] = field(default_factory=dict)
    is_away: bool = False
    honours_condition: bool = True
    on_delete: Callable[[str], None] | None = None
    on_write: Callable[[str, bytes], None] | None = None

    def write(self, path: str, data: bytes) -> None:
        self.objects[path] = Stored(data, self._now_ms())
        self.written[path] = data
        if self.on_write is not None:
            self.on_write(path, data)

    def create(self, path: str, data: bytes) -> None:
        if self.honours_condition and path in self.objects:
            raise ObjectExistsError(f"{path} exists")
        self.write(path, data)

    def delete(self, path: str) -> None:
        if path in self.objects:
            if self.on_delete is not None:
                self.on_delete(path)
            del self.objects[path]

    def age_seconds(self, path: str) -> float:
        """Returns how long ago an object was written."""
        return (self._now_ms() - self.objects[path].modified_ms) / 1000

    def fate(self) -> Fate:
        """Draws what becomes of a request."""
        if not self.faults:
            return Fate.WELL
        drawn = self.world.chance.random()
        for fate, share in self.faults.items():
            drawn -= share
            if drawn < 0:
                return fate
        return Fate.WELL

    def _now_ms(self) -> int:
        from tests.simulation.clock import EPOCH_MS  # noqa: PLC0415

        return EPOCH_MS + int(self.world.now * 1000)


class StoreClient:
    """An `ObjectStore` of one process."""

    def __init__(self, model: StoreModel, process: Process, *, get_bytes_max: int | None = None) -> None:
        self._model = model
        self._world = model.world
        self._process = process
        self.get_bytes_max = get_bytes_max
        self._tried: dict[str, bool] = process.resources.setdefault("tried writes", {})

    @property
    def url(self) -> str:
        return URL

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        self._write("put", path, lambda: self._model.write(path, data))

    def create(self, path: str, data: bytes) -> None:
        check_path(path)
        self._write("create", path, lambda: self._model.create(path, data))

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:  # noqa: ARG002 - as in the contract
        check_path(path)
        data = source.read_bytes()
        self._write("upload", path, lambda: self._model.write(path, data))

    def copy(self, source: str, target: str) -> None:
        check_path(target)
        self._write("copy", target, lambda: self._model.write(target, self._found(source)))

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)

        def apply() -> None:
            for path in doomed:
                self._model.delete(path)

        self._write("delete", f"{len(doomed)} objects {doomed[0] if doomed else ''}", apply)

    def get(self, path: str) -> bytes:
        data = self._read(path)
        check_size(path, len(data), self.get_bytes_max)
        return data

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        data = self._read(path)
        self._check(path, data, size_bytes, sha256)
        target.write_bytes(data)

    def check(self, path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]) -> None:
        data = self._read(path)
        on_read(len(data))
        self._check(path, data, size_bytes, sha256)

    def head(self, path: str) -> ObjectInfo | None:
        self._look(path)
        found = self._model.objects.get(path)
        return None if found is None else ObjectInfo(path, len(found.data), found.modified_ms)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        self._world.moment("reading.list")
        self._request("list", prefix)
        before = self._listed(prefix, start_after)
        self._world.sleep(self._latency())
        after = self._listed(prefix, start_after)
        if before.keys() != after.keys():
            # Pages are listed one after the other: of what came or went in the meantime some is seen and some is not.
            self._world.reach("an object came or went while it was listed")
            for path in sorted(before.keys() ^ after.keys()):
                if self._world.chance.random() < 0.5:
                    after.pop(path, None)
                else:
                    after[path] = before.get(path) or after[path]
        return iter([after[path] for path in sorted(after)])

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:  # noqa: ARG002 - a write is done at once here
        self._request("remove unfinished", prefix)
        return 0

    def _listed(self, prefix: str, start_after: str) -> dict[str, ObjectInfo]:
        return {
            path: ObjectInfo(path, len(stored.data), stored.modified_ms)
            for path, stored in self._model.objects.items()
            if path.startswith(prefix) and path > start_after
        }

    def _found(self, path: str) -> bytes:
        found = self._model.objects.get(path)
        if found is None:
            raise ObjectNotFoundError(f"{path} does not exist")
        return found.data

    @staticmethod
    def _check(path: str, data: bytes, size_bytes: int | None, sha256: str | None) -> None:
        if size_bytes is not None and len(data) != size_bytes:
            raise ObjectCorruptError(f"{path} has {len(data)} bytes instead of {size_bytes}")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ObjectCorruptError(f"{path} has another content than it was written with")

    def _latency(self) -> float:
        return LATENCY_SECONDS * (0.25 + self._world.chance.random())

    def _request(self, kind: str, path: str) -> None:
        """Lets a request travel; raises if the store cannot be reached."""
        if self._world.current is None:  # the environment looks for itself
            return
        self._world.sleep(self._latency())
        self._require_reachable(kind, path)

    def _require_reachable(self, kind: str, path: str) -> None:
        host = self._process.host
        if self._model.is_away or host.store_is_away or host.is_cut_off:
            self._world.sleep(TIMEOUT_SECONDS)
            raise StoreUnavailableError(f"no answer to {kind} {path}")

    def _read(self, path: str) -> bytes:
        fate = self._look(path)
        data = self._found(path)
        if fate is Fate.DAMAGED and data:
            self._world.reach("an answer of the store was damaged")
            data = damaged(data, self._world.chance)
        return data

    def _look(self, path: str) -> Fate:
        check_path(path)
        self._request("get", path)
        fate = self._model.fate()
        if fate in {Fate.NOT_APPLIED, Fate.ANSWER_LOST}:
            raise StoreUnavailableError(f"no answer to get {path}")
        return fate

    def _write(self, kind: str, path: str, apply: Callable[[], None]) -> None:
        world = self._world
        world.moment(f"store.{kind}.before")
        self._request(kind, path)
        if world.is_over:
            return
        fate = self._model.fate()
        if fate in {Fate.ANSWER_LOST, Fate.APPLIED_LATE}:
            self._tried[path] = True
        if fate is Fate.NOT_APPLIED:
            world.trace.note(world, f"{kind} {path}: not applied")
            raise StoreUnavailableError(f"no answer to {kind} {path}")
        if fate is Fate.APPLIED_LATE:
            world.trace.note(world, f"{kind} {path}: to be applied late")
            world.after(world.chance.choice((0.05, 1.0, 20.0)), lambda: self._late(kind, path, apply))
            raise StoreUnavailableError(f"no answer to {kind} {path}")
        if fate is Fate.SLOW:
            world.sleep(world.chance.choice((0.5, 3.0, 15.0)))
        try:
            apply()
        except ObjectExistsError:
            self._note_conflict(path)
            raise
        world.trace.note(world, f"{kind} {path}")
        world.moment(f"store.{kind}.applied")
        if world.current is not None:
            world.sleep(self._latency())
        if fate is Fate.ANSWER_LOST:
            world.trace.note(world, f"{kind} {path}: the answer is lost")
            raise StoreUnavailableError(f"no answer to {kind} {path}")

    def _note_conflict(self, path: str) -> None:
        if self._tried.get(path):
            self._world.reach("a write met its own earlier try")
        elif "/log/" in path:
            self._world.reach("a zombie planned or committed after a take-over, and was refused")

    def _late(self, kind: str, path: str, apply: Callable[[], None]) -> None:
        try:
            apply()
        except (ObjectExistsError, ObjectNotFoundError):
            self._world.trace.note(self._world, f"{kind} {path}: refused, late")
            self._world.reach("a late write was refused")
        else:
            self._world.trace.note(self._world, f"{kind} {path}: applied late")
            self._world.reach("a write was applied after its writer had given up")


_DIGIT = re.compile(rb"[0-9]")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Returns data with its end missing, with a byte changed, or with one digit in the place of another."""
    match chance.randrange(3):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            place = chance.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    digits = [found.start() for found in _DIGIT.finditer(data)] or [0]
    place = chance.choice(digits)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
