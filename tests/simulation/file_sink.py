"""The product's own sink of files, on a file system in memory whose every effect takes time and may be the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from keyscale.jobs.errors import SinkUnavailableError
from keyscale.jobs.sinks import files
from keyscale.jobs.sinks.files import FileSink
from tests.support.sinks.file_system import ModelDirectory, ModelSession, TableFrame

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.sinks.sink import SinkContext
    from tests.simulation.world import Process, World

EFFECT_SECONDS = 0.003
AWAY_SECONDS = 2.0


@dataclass(slots=True)
class SinkHost:
    """The host of a driver, as the file system sees it."""

    model: FileSinkModel
    process: Process

    def act(self) -> None:
        """Comes before each effect."""
        world = self.model.world
        world.moment("sink.effect.before")
        world.sleep(EFFECT_SECONDS)
        if self.model.is_away or self.process.host.is_cut_off:
            world.sleep(AWAY_SECONDS)
            raise SinkUnavailableError("the file system does not answer")


@dataclass(slots=True)
class FileSinkModel:
    """A directory that readers look at.

    Attributes:
        world: The world.
        directory: The directory.
        copies: Whether a rename copies, as on an object store.
        is_away: Whether the file system answers nobody.
    """

    world: World
    directory: Path
    copies: bool = False
    is_away: bool = False

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """All that a reader sees, a batch after the other."""
        found = [
            (int(name.name.partition("=")[2]), name)
            for name in self.directory.glob("batch=*")
            if name.name.partition("=")[2].isdecimal()
        ]
        return [row for _, batch in sorted(found) for file in sorted(batch.glob("*.json")) for row in _rows_of(file)]

    @property
    def staged(self) -> list[str]:
        """What is staged, and no reader sees."""
        return sorted(str(path) for path in (self.directory / files._STAGING).glob("*/*/*"))

    def sink_of(self, process: Process) -> PlayedFileSink:
        """Returns the sink of a process."""
        session = ModelSession(cast("Any", SinkHost(self, process)), copies=self.copies, is_local=False)
        process.resources["sink session"] = session
        return PlayedFileSink(FileSink(str(self.directory), format="json"), session)


@dataclass(slots=True)
class PlayedFileSink:
    """A `FileSink` that takes tables."""

    sink: FileSink
    session: ModelSession
    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: Any, context: SinkContext) -> str:
        return self.sink.prepare(cast("Any", TableFrame(self.session, (frame,))), context)

    def publish(self, token: str) -> None:
        self.sink.publish(token)

    def discard(self, token: str) -> None:
        self.sink.discard(token)

    def recover(self, context: SinkContext) -> None:
        self.sink.recover(context)


def patches(world: World) -> list[tuple[Any, str, object]]:
    """Returns the replacements that make the product's sink use such a file system."""
    active = SimpleNamespace(active=lambda: world.process.resources["sink session"])
    return [(files, "SparkSession", active), (files, "HadoopDirectory", ModelDirectory)]


def _rows_of(file: Path) -> list[tuple[int, ...]]:
    return [tuple(json.loads(line).values()) for line in file.read_text().splitlines()]
