"""A driver sleeps until there is work, and notices files that the query has not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.runtime.driver import sleep as sleep_module
from keyscale.jobs.runtime.driver.run_outcome import ASLEEP, WOKEN, RunOutcome, RunOutcomeBox
from keyscale.jobs.runtime.driver.sleep import TIMER_AHEAD_MS, Sleep
from keyscale.jobs.runtime.driver.source_watch import SETTLED_SECONDS, SourceWatch
from keyscale.jobs.sources.directory_watch import DirectoryWatch
from keyscale.state.keyed.timer_service import NextTimers
from keyscale.vocabulary import DriverState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep_module, "POLL_SECONDS", 0.001)


def asleep() -> RunOutcomeBox:
    box = RunOutcomeBox()
    box.give(ASLEEP)
    return box


def test_a_driver_leaves_spark_and_wakes_when_records_wait() -> None:
    events: list[str] = []
    counts = iter([0, 0, 7])
    watch = SourceWatch([], lambda: next(counts))
    sleep = Sleep(lambda: events.append("spark has ended"), True, watch, end_watch=lambda: events.append("end"))
    assert sleep.sleep(asleep(), lambda: events.append("reported")) is WOKEN
    assert events == ["spark has ended", "reported", "end"]


def test_a_driver_wakes_for_a_command_and_before_a_timer() -> None:
    sleep = Sleep(is_wanted=True, timers_due_at_ms=100_000)
    assert sleep.reason_to_wake(100_000 - TIMER_AHEAD_MS - 1) is None
    assert sleep.reason_to_wake(100_000 - TIMER_AHEAD_MS) == "a timer is due"
    sleep.want(False)
    assert sleep.reason_to_wake(0) == "the control plane has work"


def test_a_driver_does_not_sleep_while_the_timers_of_a_subtask_are_unknown() -> None:
    sleep = Sleep(is_wanted=True)
    sleep.note_timers([NextTimers(processing_ms=90_000), NextTimers(event_ms=5), NextTimers(processing_ms=70_000)])
    assert (sleep.timers_due_at_ms, sleep.reason_to_wake(0)) == (70_000, None)
    sleep.note_timers([NextTimers(), None])
    assert (sleep.timers_due_at_ms, sleep.reason_to_wake(0)) == (None, "the driver does not know its timers")


def test_a_stop_that_comes_first_ends_the_run_without_a_sleep() -> None:
    box = asleep()
    box.give(RunOutcome(DriverState.STOPPED))
    ended = Sleep(lambda: pytest.fail("Spark ends with the run"), True).sleep(box, lambda: None)
    assert ended.state is DriverState.STOPPED


def test_a_file_after_the_last_poll_is_news(tmp_path: Path) -> None:
    (tmp_path / "read.json").write_text("{}")
    watch = SourceWatch([f"FileSource[{tmp_path.as_uri()}]"], lambda: None)
    assert not watch.is_settled(1000.0, 0), "no look yet"
    watch.poll(0.0, commits=1)
    assert watch.news() is None
    assert not watch.is_settled(SETTLED_SECONDS + 1, 2000)
    assert watch.is_settled(SETTLED_SECONDS + 2, 2000)
    (tmp_path / "_temporary").write_text("{}")
    (tmp_path / ".hidden").write_text("{}")
    assert watch.news() is None
    (tmp_path / "new.json").write_text("{}")
    watch.poll(1.0, commits=1)
    assert watch.news() == "a file has arrived", "a further look without a commit notes no files"
    watch.poll(1.0, commits=2)
    assert watch.news() is None


def test_sources_that_cannot_be_watched_are_named() -> None:
    names = ["FileSource[s3a://bucket/in]", "FileSource[/in/*.json]", "kafka", "FileSource[/in]"]
    assert SourceWatch(names, lambda: None).unwatched == ["FileSource", "FileSource", "kafka"]
    assert SourceWatch([], lambda: 0).unwatched == []
    assert SourceWatch([], lambda: None).unwatched == ["a source that does not count"]


def test_a_job_does_not_sleep_before_the_log_has_the_positions_of_its_sources() -> None:
    begun = [False]
    watch = SourceWatch([], lambda: 0, has_begun=lambda: begun[0])
    assert watch.unwatched == ["a source that the job has not read"]
    begun[0] = True
    assert (watch.unwatched, watch.news()) == ([], None)


def test_a_job_wakes_for_a_loss_which_its_next_attempt_reports() -> None:
    assert (
        SourceWatch([], lambda: 0, loss=lambda: "the topic was created again").news() == "the topic was created again"
    )


def test_a_directory_that_cannot_be_read_is_no_news_and_is_logged_once_each_time_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = [True]

    def has_news(_: DirectoryWatch) -> bool:
        if is_away[0]:
            raise OSError("stale file handle")
        return False

    watch = SourceWatch([f"FileSource[{tmp_path.as_uri()}]"], lambda: None)
    watch.poll(0.0, commits=1)
    monkeypatch.setattr(DirectoryWatch, "has_news", has_news)
    for is_away[0] in (True, True, False, True):
        assert watch.news() is None
    assert caplog.messages == ["a directory cannot be read: stale file handle"] * 2
