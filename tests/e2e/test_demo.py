"""A short demo: a part of the real flights through the real stack, killed and rescaled, with an exact result."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.deploy.demo.run import Demo
from keyscale.deploy.demo.scenario import Scenario

SHORT = Scenario(reports=40_000, files=24, seconds=20.0, checkpoint_interval_ms=1000)


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_short_demo_ends_with_every_number_right_and_no_process_left() -> None:
    shown = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="keyscale-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "a demo of mine"
        console = Console(file=shown, width=200)
        demo = Demo(home=home, port=free_port(), scenario=SHORT, console=console, stay=False, settings={})
        verdict = demo.run()
        assert [check for check in verdict.checks if not check.holds] == []
        assert verdict.recovery.new_attempt > verdict.recovery.killed_attempt
        assert [rescale["to_parallelism"] for rescale in verdict.rescales] == [4, 1]
        assert all(rescale["downtime_ms"] is not None for rescale in verdict.rescales)
        assert "EXACT" in shown.getvalue()
        assert processes_of(home) == []
