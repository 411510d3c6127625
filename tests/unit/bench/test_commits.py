"""A pause is the longest time between two commits around a request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.peers import commits as of_commits
from bench.peers.commits import Commits, Pause, longest_pause, longest_wait_ms, ordinary_gap_ms


def test_a_pause_begins_with_the_last_commit_before_it() -> None:
    times = [1.0, 1.5, 2.0, 4.0, 4.5, 5.0]
    pause = longest_pause(times, 2.25)
    assert pause == Pause(pause_ms=2000.0, done_ms=1750.0)


def test_a_commit_during_the_change_does_not_end_the_pause() -> None:
    times = [1.0, 1.5, 2.0, 2.5, 4.75, 5.0]  # the savepoint published at 2.5
    pause = longest_pause(times, 2.25)
    assert pause == Pause(pause_ms=2250.0, done_ms=2500.0)


def test_a_pause_before_the_request_does_not_count() -> None:
    assert longest_pause([0.0, 10.0, 10.5, 11.0], 10.25).pause_ms == 500.0


def test_the_ordinary_gap_is_a_median() -> None:
    assert ordinary_gap_ms([0.0, 0.5, 1.0, 9.0]) == 500.0


@pytest.mark.parametrize("numbers", [[0, 0, 1, 1, 2], [0, 3, 3, 9]])
def test_commits_between_two_looks_are_one(numbers: list[int]) -> None:
    looks = iter(numbers)
    with Commits(lambda: next(looks, numbers[-1])) as commits:
        commits.wait_for(2)
    assert len(commits.times) == 2


@pytest.mark.parametrize(
    ("commit_times", "following", "waited_ms"),
    [
        ([0.5, 1.5, 5.5, 6.0], 3, 4000),  # the commit at 1.5 was under way, and the one at 0.5 came during the act
        ([0.5, 1.5, 5.5, 6.0], 1, 1500),
    ],
)
def test_a_commit_that_was_under_way_does_not_end_the_longest_wait(
    monkeypatch: pytest.MonkeyPatch, commit_times: list[float], following: int, waited_ms: int
) -> None:
    now = [0.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(of_commits, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))
    waited = longest_wait_ms(lambda: pass_time(1.0), lambda: sum(at <= now[0] for at in commit_times), following)
    assert waited == pytest.approx(waited_ms, abs=20)
