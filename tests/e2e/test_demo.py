"""Short demos: a part of the real flights through the real stack, disturbed in every way, with an exact result."""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.deploy.demo.kill_and_rescale import FaultsVerdict, KillAndRescale
from keyscale.deploy.demo.run import Demo
from keyscale.deploy.demo.scenario import RescaleScenario, UpgradeScenario
from keyscale.deploy.demo.upgrade.upgrade_play import Upgrade, UpgradeVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.deploy.demo.run import Play
    from keyscale.deploy.demo.verdict import Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@contextmanager
def performed(play: Play) -> Iterator[tuple[Verdict, str]]:
    """Runs a demo; gives its verdict and what it has shown, and checks that nothing of it is left."""
    shown = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="keyscale-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "a demo of mine"
        console = Console(file=shown, width=200)
        verdict = Demo(home=home, port=free_port(), play=play, console=console, stay=False, settings={}).run()
        assert [check for check in verdict.checks if not check.holds] == []
        assert "EXACT" in shown.getvalue()
        assert re.search(r"^Open first http://127\.0\.0\.1:\d+/ui/jobs/[\w-]+/\w+$", shown.getvalue(), re.MULTILINE)
        yield verdict, shown.getvalue()
        assert processes_of(home) == []


def test_a_short_demo_ends_with_every_number_right_and_no_process_left() -> None:
    scenario = RescaleScenario(reports=40_000, files=24, seconds=20.0, checkpoint_interval_ms=1000)
    with performed(KillAndRescale(scenario)) as (verdict, _):
        assert isinstance(verdict, FaultsVerdict)
        assert verdict.recovery.new_attempt > verdict.recovery.killed_attempt
        assert [rescale["to_parallelism"] for rescale in verdict.rescales] == [4, 1]
        assert all(rescale["downtime_ms"] is not None for rescale in verdict.rescales)


@pytest.mark.exhaustive
def test_a_short_demo_of_upgrades_ends_with_every_number_of_both_jobs_right_and_no_process_left() -> None:
    scenario = UpgradeScenario(reports=40_000, files=40, seconds=30.0, checkpoint_interval_ms=1000)
    with performed(Upgrade(scenario)) as (verdict, shown):
        assert isinstance(verdict, UpgradeVerdict)
        assert [change["status"] for change in verdict.changes] == ["COMPLETED", "ROLLED_BACK"]
        assert all(change["downtime_ms"] is not None for change in verdict.changes)
        for told in ("it counts wrongly", "migrated", "departure_delay", "rolled back by itself"):
            assert told in shown
