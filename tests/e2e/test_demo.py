"""Short demos: a part of the real flights through the real stack, disturbed in every way, with an exact result."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from rich.console import Console

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.deploy.demo.outage.outage_play import OutageScenario, OutageVerdict, outage_play
from keyscale.deploy.demo.run import Demo
from keyscale.deploy.demo.scenario import UpgradeScenario
from keyscale.deploy.demo.upgrade.upgrade_play import Upgrade, UpgradeVerdict
from keyscale.installation import IMPORT_PATH
from tests.support.servers.browser import new_page, running_browser
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from keyscale.deploy.demo.run import Play
    from keyscale.deploy.demo.verdict import Verdict

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]


@contextmanager
def performed(play: Play, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Verdict, str]]:
    """Runs a demo; gives its verdict and what it has shown, and checks that nothing of it is left."""
    shown = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="keyscale-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "a demo of mine"
        console = Console(file=shown, width=200)
        demo = Demo(home=home, port=free_port(), play=play, console=console, stay=False, settings=settings or {})
        verdict = demo.run()
        assert [check for check in verdict.checks if not check.holds] == []
        assert "EXACT" in shown.getvalue()
        assert re.search(r"^Open first http://127\.0\.0\.1:\d+/ui/jobs/[\w-]+(/\w+)?$", shown.getvalue(), re.MULTILINE)
        yield verdict, shown.getvalue()
        assert processes_of(home) == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_a_short_demo_on_a_terminal_is_exact_and_stays_with_its_history_until_it_is_ended(
    ending: signal.Signals,
) -> None:
    with tempfile.TemporaryDirectory(prefix="keyscale-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "a home of mine"
        with on_a_terminal(home, "--reports", "40000", "--files", "24", "--seconds", "20") as (process, shown):
            wait_until(lambda: "press Ctrl-C" in shown() or process.poll() is not None, 600, what="the end of the demo")
            assert "EXACT" in shown(), shown()
            said = re.search(r"^Open first (\S+)\nToken +(\S+)$", shown(), re.MULTILINE)
            assert said, shown()
            with running_browser() as browser, new_page(browser) as page:
                page.goto(said[1])
                page.get_by_label("Token").fill(said[2])
                page.get_by_role("button", name="Sign in").click()
                expect(page).to_have_url(said[1])
                for rescale in ("2 → 4", "4 → 1"):
                    expect(page.get_by_role("cell", name=rescale)).to_be_visible()
            process.send_signal(ending)
            assert process.wait(60) == 0
        assert processes_of(home) == []


@contextmanager
def on_a_terminal(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Runs the demo on a terminal of its own; gives its process, and what it has shown so far."""
    leader, follower = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other side is closed
            while part := os.read(leader, 65536):
                parts.append(part)

    with subprocess.Popen(
        [sys.executable, "-P", "-m", "keyscale.deploy.demo", "demo", *options],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={
            **os.environ,
            "PYTHONPATH": str(IMPORT_PATH),
            "KEYSCALE_HOME": str(home),
            "TERM": "dumb",
            "COLUMNS": "200",
        },
    ) as process:
        os.close(follower)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, lambda: b"".join(parts).decode(errors="replace").replace("\r\n", "\n")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
            reader.join(10)
            os.close(leader)


def test_a_short_demo_of_upgrades_ends_with_every_number_of_both_jobs_right_and_no_process_left() -> None:
    scenario = UpgradeScenario(reports=40_000, files=40, seconds=30.0, checkpoint_interval_ms=1000)
    with performed(Upgrade(scenario)) as (verdict, shown):
        assert isinstance(verdict, UpgradeVerdict)
        assert [change["status"] for change in verdict.changes] == ["COMPLETED", "ROLLED_BACK"]
        assert all(change["downtime_ms"] is not None for change in verdict.changes)
        for told in ("it counts wrongly", "MIGRATED", "departure_delay", "rolled back by itself"):
            assert told in shown


@pytest.mark.timeout(1800)  # a job that was scaled out stays so for five minutes
def test_a_job_clears_the_backlog_of_an_outage_by_itself_and_the_course_is_drawn(tmp_path: Path) -> None:
    with (
        outage_play(OutageScenario(), tmp_path / "servers") as play,
        performed(play, play.s3.variables) as (verdict, shown),
    ):
        assert isinstance(verdict, OutageVerdict)
        assert verdict.drawing.read_text(encoding="utf-8").startswith("<svg")
        assert {"OUTAGE", "SCALE_UP", "SCALE_DOWN"} <= set(verdict.verdicts)
        for told in ("object store goes away", "scaled out", "the backlog is gone", "scaled in"):
            assert told in shown


def test_a_job_with_a_slow_sink_keeps_its_size_and_says_why(tmp_path: Path) -> None:
    scenario = OutageScenario(service_ms=0.0, sink_ms=15.0, quiet_s=30.0)
    with (
        outage_play(scenario, tmp_path / "servers") as play,
        performed(play, play.s3.variables) as (verdict, shown),
    ):
        assert isinstance(verdict, OutageVerdict)
        assert "SINK_SLOW" in shown
