"""Histories of the data plane: whatever befalls drivers, store, sink and clocks, each record has its effect once."""

from __future__ import annotations

import pytest

from tests.simulation.environment import play
from tests.simulation.generator import data_plane_history
from tests.simulation.trace import Trace

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_the_data_plane_leaves_no_finding(seed: int) -> None:
    assert play(data_plane_history(seed)).findings == []


def test_the_same_seed_gives_the_same_history_and_the_same_trace() -> None:
    first, second = (play(data_plane_history(7), trace) for trace in (Trace(), Trace()))
    assert first.digest == second.digest


def test_another_seed_gives_another_trace() -> None:
    assert play(data_plane_history(7)).digest != play(data_plane_history(8)).digest
