"""A file system of Spark's without a JVM: the directories that sinks stage in, on the local disk."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.file_rights import missing_right
from keyscale.jobs.errors import SinkForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from tests.support.sinks.driver import Host


@dataclass(frozen=True, slots=True)
class ModelSession:
    """The parts of a Spark session that sinks use.

    Attributes:
        host: The host of the driver.
        copies: Whether a rename copies file by file and then deletes, as on an object store.
        is_local: Whether the files can be written without Hadoop.
    """

    host: Host
    copies: bool = False
    is_local: bool = True
    version: str = "4.0.0"

    @property
    def conf(self) -> Any:
        return SimpleNamespace(getAll={})

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(defaultParallelism=4)


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """Plays `HadoopDirectory`."""

    spark: ModelSession
    path: str

    def child(self, name: str) -> ModelDirectory:
        return ModelDirectory(self.spark, f"{self.path.rstrip('/')}/{name}")

    def local_path(self) -> str | None:
        return self.path if self.spark.is_local else None

    def require_right(self) -> None:
        reason = missing_right(self.path) if self.spark.is_local else None
        if reason is not None:
            raise SinkForbiddenError(reason)

    def exists(self) -> bool:
        return Path(self.path).exists()

    def delete(self) -> None:
        if self.exists():
            self.spark.host.act()
            path = Path(self.path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def names(self) -> list[str]:
        return [each.name for each in Path(self.path).iterdir()] if self.exists() else []

    def move_to(self, target: ModelDirectory) -> bool:
        """Renames it. As in Hadoop, into the target if that is there, and without an error if this is not."""
        if not self.exists():
            return False
        place = Path(target.path, Path(self.path).name) if target.exists() else Path(target.path)
        if not self.spark.copies:
            self.spark.host.act()
            place.parent.mkdir(parents=True, exist_ok=True)
            Path(self.path).rename(place)
            return True
        place.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(self.path).iterdir()):
            self.spark.host.act()
            shutil.copy(file, place / file.name)
        self.delete()
        return True

    def read_text(self, name: str) -> str | None:
        file = Path(self.path, name)
        return file.read_text() if file.exists() else None

    def write_text(self, name: str, text: str) -> None:
        self.spark.host.act()
        Path(self.path).mkdir(parents=True, exist_ok=True)
        Path(self.path, name).write_text(text)

    def touch(self, name: str) -> None:
        self.write_text(name, "")


@dataclass(frozen=True, slots=True)
class TableFrame:
    """The parts of a frame that sinks use, over partitions that are tables."""

    session: ModelSession
    partitions: tuple[pa.Table, ...]

    @property
    def columns(self) -> list[str]:
        return list(self.partitions[0].schema.names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        names = {pa.int64(): "bigint", pa.string(): "string"}
        return [(field.name, names[field.type]) for field in self.partitions[0].schema]

    @property
    def write(self) -> TableFrame:
        return self

    def format(self, _: str) -> TableFrame:
        return self

    def options(self, **_: object) -> TableFrame:
        return self

    def save(self, path: str) -> None:
        """Writes a file of JSON lines per partition, as tasks do: one after the other."""
        Path(path).mkdir(parents=True)
        for number, table in enumerate(self.partitions):
            self.session.host.act()
            lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
            Path(path, f"part-{number}.json").write_text(lines)

    def mapInArrow(  # noqa: N802 - Spark's name
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> MappedFrame:
        return MappedFrame(((self.partitions, function),))


@dataclass(frozen=True, slots=True)
class MappedFrame:
    """Frames whose partitions go through functions when they are collected."""

    parts: tuple[tuple[tuple[pa.Table, ...], Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]], ...]

    def union(self, other: MappedFrame) -> MappedFrame:
        return MappedFrame(self.parts + other.parts)

    def collect(self) -> list[Any]:
        """Runs all tasks, as those that run side by side do not wait for each other; raises the first failure."""
        rows, failures = [], []
        for tables, function in self.parts:
            for table in tables:
                try:
                    rows += [row for batch in function(iter(table.to_batches())) for row in batch.to_pylist()]
                except Exception as failure:  # noqa: BLE001 - raised below
                    failures.append(failure)
        if failures:
            raise failures[0]
        return [SimpleNamespace(**row) for row in rows]


def use_model(monkeypatch: pytest.MonkeyPatch, session: ModelSession, *modules: Any) -> None:
    """Makes modules of sinks use the model for Spark's session and its file system."""
    for module in modules:
        monkeypatch.setattr(module, "SparkSession", SimpleNamespace(active=lambda: session))
        monkeypatch.setattr(module, "HadoopDirectory", ModelDirectory)
