"""A history closes every descriptor that its processes open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.descriptors import Descriptors
from tests.simulation.environment import play
from tests.simulation.generator import data_plane_scenes
from tests.simulation.trace import Trace
from tests.simulation.world import Host, Process, World

if TYPE_CHECKING:
    import pytest

HISTORY = data_plane_scenes("crash", moments=("checkpoint.uploaded",))(0)


def open_descriptors() -> set[int]:
    listed = list(Path("/proc/self/fd").iterdir())
    return {int(entry.name) for entry in listed if entry.exists()}  # without the descriptor of the listing


def test_a_history_with_killed_drivers_leaves_no_descriptor() -> None:
    play(HISTORY)
    before = open_descriptors()
    assert play(HISTORY).reached["a driver was lost in the middle of a checkpoint"]
    assert open_descriptors() == before


def test_a_history_leaves_descriptors_if_the_world_closes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    play(HISTORY)
    before = open_descriptors()
    monkeypatch.setattr(Descriptors, "_close_of", lambda *_: None)
    play(HISTORY)
    left = open_descriptors() - before
    for descriptor in left:
        os.close(descriptor)
    assert left


def test_the_code_of_a_dead_process_closes_no_descriptor_of_another_process(tmp_path: Path) -> None:
    world = World(0, Trace())
    descriptors = Descriptors(world)
    dead, alive = Process("dead", Host("a")), Process("alive", Host("a"))
    opened: dict[str, int] = {}

    def open_in(process: Process) -> None:
        opened[process.name] = descriptors.open(tmp_path, os.O_RDONLY)

    world.spawn(dead, "main", lambda: open_in(dead))
    world.run_until(0.0)
    dead.kill()
    world.spawn(alive, "main", lambda: open_in(alive))
    world.run_until(0.0)
    assert opened["alive"] == opened["dead"]

    dead.is_alive = True  # so that its code runs once more
    world.spawn(dead, "unwound", lambda: descriptors.close(opened["dead"]))
    world.run_until(0.0)
    os.fstat(opened["alive"])
    descriptors.close_all()
    world.close()
