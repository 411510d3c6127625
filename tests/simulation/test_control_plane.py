"""Histories with control planes on PostgreSQL: each request is carried out once, whatever befalls the platform."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.simulation.control_plane_guards import CONTROL_PLANE, ControlPlaneGuard
from tests.simulation.controlled import play_controlled
from tests.simulation.crash_points import KINDS, crashes, steps_of
from tests.simulation.database import Database
from tests.simulation.generator import control_plane_history
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.environment import Outcome
    from tests.simulation.history import History

pytestmark = pytest.mark.real
SEEDS = (0, 1, 4, 6)
SEED_PLAYED_TWICE = 3
MORE_SEEDS = (2, 5, *range(7, 60))
KINDS_IN_SHORT = ("rescale", "deletion")
CRASHES = 2
"""So many steps of each of these kinds are tried in the real tier, and ten of each kind in the exhaustive one."""


@pytest.fixture(scope="module")
def database(postgres_server: str, migrated_template: str) -> Iterator[Database]:
    with closing(Database(create_database(postgres_server, "simulation", migrated_template))) as database:
        yield database


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_the_whole_platform_leaves_no_finding(database: Database, seed: int) -> None:
    assert play_controlled(control_plane_history(seed), database).findings == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_any_history_of_the_whole_platform_leaves_no_finding(database: Database, seed: int) -> None:
    assert play_controlled(control_plane_history(seed), database).findings == []


def findings_of_crashes(database: Database, kind: str, count: int) -> dict[str, list[str]]:
    """Plays the history of a kind with a crash at some of its durable steps; returns what was found, by step."""

    def play(history: History) -> Outcome:
        return play_controlled(history, database)

    steps = steps_of(kind, play)
    stride = max(1, len(steps) // count)
    played = ((steps[step], play(history)) for step, history in crashes(kind, len(steps), "itself", stride=stride))
    return {step: outcome.findings for step, outcome in played if outcome.findings}


@pytest.mark.parametrize("kind", KINDS_IN_SHORT)
def test_a_crash_at_a_durable_step_loses_no_request(database: Database, kind: str) -> None:
    assert findings_of_crashes(database, kind, CRASHES) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [kind for kind, history in KINDS.items() if history.has_control_plane])
def test_crashes_at_many_durable_steps_lose_no_request(database: Database, kind: str) -> None:
    assert findings_of_crashes(database, kind, 5 * CRASHES) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("guard", CONTROL_PLANE, ids=lambda guard: guard.name)
def test_the_auditor_finds_that_a_guard_of_the_control_plane_is_off(
    database: Database, guard: ControlPlaneGuard
) -> None:
    assert guard.findings(database, is_off=False) == []
    assert guard.findings(database, is_off=True)


def test_the_same_seed_gives_the_same_trace_in_whatever_order_rows_come(database: Database) -> None:
    first = play_controlled(control_plane_history(SEED_PLAYED_TWICE), database)
    with database.shuffled():
        second = play_controlled(control_plane_history(SEED_PLAYED_TWICE), database)
    assert first.findings == []
    assert first.digest == second.digest
