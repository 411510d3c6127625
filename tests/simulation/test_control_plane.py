"""Histories with control planes on PostgreSQL: whatever befalls them and their drivers, each wish comes true once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.simulation.controlled import play_controlled
from tests.simulation.database import Database
from tests.simulation.generator import control_plane_history
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
SEEDS = range(8)


@pytest.fixture(scope="module")
def database(postgres_server: str, migrated_template: str) -> Iterator[Database]:
    with closing(Database(create_database(postgres_server, "simulation", migrated_template))) as database:
        yield database


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_the_whole_platform_leaves_no_finding(database: Database, seed: int) -> None:
    assert play_controlled(control_plane_history(seed), database).findings == []


def test_the_same_seed_gives_the_same_history_and_the_same_trace(database: Database) -> None:
    first, second = (play_controlled(control_plane_history(3), database) for _ in range(2))
    assert first.digest == second.digest
