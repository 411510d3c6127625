"""A named step holds a process until a test lets it go on, also one that is chosen while the process runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY, failpoint
from tests.support.named_moments import NamedMoments
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedMoments:
    chosen = NamedMoments(tmp_path / "moments")
    for name, value in chosen.settings.items():
        monkeypatch.setenv(name, value)
    return chosen


def reaching(*names: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: [failpoint(name) for name in names], daemon=True)
    thread.start()
    return thread


def test_a_step_is_chosen_while_a_process_runs(moments: NamedMoments) -> None:
    failpoint("a")
    first = moments.hold_at("a")
    thread = reaching("b", "a", "b")
    wait_until(first.held, what="the step")
    second = moments.hold_at("b")
    assert not second.held()
    first.release()
    wait_until(second.held, what="the next step")
    moments.hold_nobody()
    assert thread.is_alive()
    second.release()
    thread.join(30)
    assert not thread.is_alive()


def test_the_nth_time_is_counted_from_the_choice(moments: NamedMoments) -> None:
    moments.hold_at("a@3")
    failpoint("a")
    failpoint("a")
    chosen = moments.hold_at("a@2")
    failpoint("a")
    assert not chosen.held()
    thread = reaching("a")
    wait_until(chosen.held, what="the second time")
    chosen.release()
    thread.join(30)


def test_a_step_that_is_named_by_a_variable_holds_and_others_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILPOINT, "a")
    monkeypatch.setenv(FAILPOINT_DIRECTORY, str(tmp_path))
    thread = reaching("b", "a")
    wait_until(lambda: list(tmp_path.glob("a.*")), what="the step")
    (tmp_path / "a.go").touch()
    thread.join(30)
    assert not thread.is_alive()
    failpoint("a")
