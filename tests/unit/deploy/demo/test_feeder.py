"""The feeder writes each report at least once, file by file, within its allowance, and the output is counted."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from keyscale.deploy.demo import feeder, progress, running_feeder, verdict
from keyscale.deploy.demo.progress import ProgressDisplay
from keyscale.deploy.demo.published_output import PublishedOutput, read_rows
from keyscale.deploy.demo.reference import Check
from keyscale.deploy.demo.reports import delivered, plan_deliveries
from keyscale.deploy.demo.running_feeder import RunningFeeder
from keyscale.deploy.demo.scenario import Scenario

if TYPE_CHECKING:
    from pathlib import Path

REPORTS = [{"report_id": str(number), "sched_ms": number} for number in range(40)]


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the feeder, by a clock that they alone move."""
    made: list[float] = []
    monkeypatch.setattr(feeder.time, "monotonic", lambda: sum(made))
    monkeypatch.setattr(feeder.time, "sleep", made.append)
    monkeypatch.setattr(feeder, "departure_reports", lambda limit: REPORTS[:limit])
    return made


def delivered_in(directory: Path) -> list[list[str]]:
    files = sorted(directory.iterdir())
    assert [each.name for each in files] == [f"reports-{number:04d}.json" for number in range(len(files))]
    return [[json.loads(line)["report_id"] for line in each.read_text().splitlines()] for each in files]


def test_every_report_is_delivered_over_the_time_and_some_again_in_a_later_file(
    tmp_path: Path, paused: list[float]
) -> None:
    feeder.deliver(tmp_path / "in", files=4, seconds=8.0, seed=7, reports=20, allowance=None)
    files = delivered_in(tmp_path / "in")
    assert feeder.file_count(tmp_path / "in") == len(files) == 5
    seen: dict[str, int] = {}
    for number, ids in enumerate(files):
        for each in ids:
            assert seen.setdefault(each, number) == int(each) // 5
    assert len(seen) == 20 < sum(map(len, files))
    assert sum(paused) == pytest.approx(8.0 * 4 / 5), "the files are spread over the time"


def test_a_file_is_written_once_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: list[float]
) -> None:
    allowance, target = tmp_path / "allowance", tmp_path / "in"
    allowance.write_text("0")
    counted: list[int] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if seconds == feeder.ALLOWANCE_POLL_S:
            counted.append(feeder.file_count(target))
            allowance.write_text(str(len(counted)))

    monkeypatch.setattr(feeder.time, "sleep", pause)
    feeder.deliver(target, files=4, seconds=0.0, seed=7, reports=20, allowance=allowance)
    assert counted == [0, 1, 2, 3, 4], "a file with the number n needs an allowance above n"
    assert not [each.name for each in target.iterdir() if each.name.startswith(".")]


def test_the_time_of_the_delivery_begins_with_the_allowance_of_the_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: list[float]
) -> None:
    allowance, target = tmp_path / "allowance", tmp_path / "in"
    allowance.write_text("0")
    written: list[tuple[float, str]] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if sum(paused) >= 40.0:
            allowance.write_text("9")

    def write(directory: Path, name: str, records: list[dict[str, Any]]) -> None:
        assert (directory, bool(records)) == (target, True)
        written.append((round(sum(paused), 3), name))

    monkeypatch.setattr(feeder.time, "sleep", pause)
    monkeypatch.setattr(feeder, "ALLOWANCE_POLL_S", 10.0)
    monkeypatch.setattr(feeder, "write_atomically", write)
    feeder.deliver(target, files=4, seconds=10.0, seed=7, reports=20, allowance=allowance)
    assert written == [(40.0 + 2.0 * number, f"reports-{number:04d}.json") for number in range(5)]


def test_the_files_are_as_the_plan_of_their_seed_says(tmp_path: Path, paused: list[float]) -> None:
    for seed in (3, 8):
        feeder.deliver(tmp_path / str(seed), files=4, seconds=0.0, seed=seed, reports=30, allowance=None)
        planned = [delivered(REPORTS[:30], each, seed) for each in plan_deliveries(30, 4, seed)]
        assert delivered_in(tmp_path / str(seed)) == [[each["report_id"] for each in file] for file in planned]
    assert sum(paused) == 0.0


class Process:
    """A feeder that delivers nothing."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command, self.code, self.killed = command, None, 0

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed += 1

    def wait(self) -> int:
        return 0


def test_the_allowance_grows_by_shares_by_files_and_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_feeder.subprocess, "Popen", Process)
    now = [100.0]
    monkeypatch.setattr(running_feeder.time, "monotonic", lambda: now[0])
    directory, allowance = tmp_path / "in", tmp_path / "allowance"
    with RunningFeeder(directory, Scenario(files=10, seconds=20.0, seed=3), 40) as running:
        process: Any = running._process
        given = dict(zip(process.command[4::2], process.command[5::2], strict=True))
        assert given == {
            "--input": str(directory),
            "--files": "10",
            "--seconds": "20.0",
            "--seed": "3",
            "--reports": "40",
            "--allowance": str(allowance),
        }
        assert (allowance.read_text(), running.has_ended, running.delivered()) == ("0", False, 0)
        running.allow(0.35)
        assert allowance.read_text() == "3"
        running.allow(0.2)
        assert allowance.read_text() == "3", "what is allowed stays"
        (directory / "reports-0000.json").touch()
        running.allow_more(4)
        assert allowance.read_text() == "5", "beyond what is delivered"
        running.allow_next(0.7)
        running.allow_next(0.7)
        assert allowance.read_text() == "6", "one file per two seconds"
        now[0] += 2.0
        running.allow_next(0.7)
        now[0] += 2.0
        running.allow_next(0.7)
        assert allowance.read_text() == "7", "not beyond the share"
        running.allow(1.0)
        assert allowance.read_text() == "11", "with the file of the last repeats"
    assert process.killed == 1
    process.code = 0
    with running:
        assert running.has_ended
    assert process.killed == 1, "it had ended"


def test_published_rows_are_read_batch_by_batch_and_counted_as_they_come(tmp_path: Path) -> None:
    output = PublishedOutput(tmp_path)
    assert output.count_rows() == 0
    for batch, numbers in ((10, [5, 6]), (2, [3])):
        directory = tmp_path / f"batch={batch}"
        directory.mkdir()
        pq.write_table(pa.table({"number": numbers}), directory / "b.parquet")
        assert output.count_rows() == (2 if batch == 10 else 3)
    pq.write_table(pa.table({"number": [4]}), tmp_path / "batch=10" / "a.parquet")
    assert output.count_rows() == 4
    assert [row["number"] for row in read_rows(tmp_path)] == [3, 4, 5, 6]
    assert read_rows(tmp_path, last_batch=2) == [{"number": 3}]


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200), text


def test_counts_are_shown_as_lines_now_and_then_if_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown_on, text = console()
    with ProgressDisplay(shown_on, {"files": 1200}) as display:
        display.update({"files": 1})
        now[0] = progress.LINE_EVERY_S
        display.update({"files": 1100})
        display.update({"files": 1150})
        now[0] *= 2
        display.update({"files": 1100})
        display.update({"files": 1200})
    assert [line.strip() for line in text.getvalue().splitlines()] == [
        "10.0 s  1,100 of 1,200 files",
        "20.0 s  1,200 of 1,200 files",
    ]


class Course(verdict.Verdict):
    """A verdict without a course."""

    def show_course(self, console: Console) -> None:
        console.print("the course")


def test_a_verdict_has_each_comparison_and_is_exact_only_if_all_hold() -> None:
    for holds, last in ((True, "EXACT: all 2 checks hold, after 12 s"), (False, "WRONG: 1 of 2 checks do not hold")):
        shown_on, text = console()
        made = Course([Check("rows", "1,000", "1,000", holds=True), Check("keys", "7", "7", holds=holds)], 12.4)
        made.show(shown_on)
        lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
        assert (lines[0], lines[-1], made.exact) == ("the course", last, holds)
        assert f"keys 7 7 {'✓' if holds else '✗'}" in lines


def test_phases_of_changes_have_a_column_each_and_a_dash_where_a_change_has_none() -> None:
    def change(downtime_ms: int | None, **phases: int) -> dict[str, Any]:
        made = [{"phase": name, "duration_ms": duration} for name, duration in phases.items()]
        return {"phases": made, "duration_ms": 12_345, "downtime_ms": downtime_ms}

    shown_on, text = console()
    verdict.show_phases(
        shown_on, "CHANGE", [("out", change(1000, SAVEPOINT=7, VERIFY=5)), ("in", change(None, SWITCH=3, VERIFY=4))]
    )
    assert [" ".join(line.split()) for line in text.getvalue().splitlines()] == [
        "CHANGE SAVEPOINT VERIFY SWITCH TOTAL DOWNTIME",
        "out 7 5 - 12,345 1,000",
        "in - 4 3 12,345 -",
    ]


def test_only_the_newest_checkpoints_are_shown_and_the_others_are_counted() -> None:
    shown_on, text = console()
    history = [{"id": number, "status": "COMPLETED"} for number in range(14, 0, -1)]
    verdict.show_checkpoints(shown_on, {"history": history, "counts": {"in_progress": 0, "completed": 1400}})
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines() if line]
    assert lines[0] == "Checkpoints (0 in progress, 1,400 completed)"
    assert [line.split()[0] for line in lines[2:-1]] == [str(number) for number in range(14, 2, -1)]
    assert lines[-1] == "… and 2 before them"
