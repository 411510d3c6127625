"""Histories of the data plane: whatever befalls drivers, store, sink and clocks, each record has its effect once."""

from __future__ import annotations

import pytest

from tests.simulation.crash_points import KINDS, crashes, steps_of
from tests.simulation.environment import play
from tests.simulation.generator import data_plane_history, live_history
from tests.simulation.trace import Trace
from tests.support.short_form import short_form

SEEDS = (*range(10), 32)  # in 32 the job loses every checkpoint
LIVE_SEED = 10  # in it a driver opens its next attempt
FEW_CRASHES, MORE_CRASHES = 2, 6
"""So many steps of each kind are tried; the command tries all."""


@pytest.mark.parametrize("seed", short_form(range(400), SEEDS))
def test_a_history_of_the_data_plane_leaves_no_finding(seed: int) -> None:
    assert play(data_plane_history(seed)).findings == []


@pytest.mark.parametrize("seed", short_form((*range(100), 132), [LIVE_SEED]))  # in 132 united state changes meanwhile
def test_a_history_with_live_rescales_leaves_no_finding(seed: int) -> None:
    outcome = play(live_history(seed))
    assert outcome.findings == []
    assert seed != LIVE_SEED or outcome.reached["a driver spoke for its next attempt"]


def test_a_seed_gives_one_history_and_one_trace() -> None:
    first, second, other = (play(data_plane_history(seed), Trace()).digest for seed in (0, 0, 1))
    assert first == second
    assert first != other


@pytest.mark.parametrize("count", short_form([FEW_CRASHES, MORE_CRASHES], [FEW_CRASHES]))
@pytest.mark.parametrize("kind", [kind for kind, history in KINDS.items() if not history.has_control_plane])
def test_a_crash_at_a_durable_step_loses_nothing(kind: str, count: int) -> None:
    steps = steps_of(kind, play)
    findings = {}
    for step, history in crashes(kind, len(steps), "itself", stride=max(1, len(steps) // count), first=3):
        if found := play(history).findings:
            findings[f"{step}: {steps[step]}"] = found
    assert findings == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [kind for kind, history in KINDS.items() if not history.has_control_plane])
def test_a_crash_at_any_durable_step_with_all_drivers_lost_loses_nothing(kind: str) -> None:
    steps = steps_of(kind, play)
    played = ((steps[step], play(history)) for step, history in crashes(kind, len(steps), "all drivers"))
    assert {step: outcome.findings for step, outcome in played if outcome.findings} == {}
