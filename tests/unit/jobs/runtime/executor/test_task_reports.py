"""A batch is complete when every subtask has reported exactly once, and not before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.errors import IncompleteReportsError
from keyscale.jobs.runtime.executor.task_reports import TaskReport, complete_reports

UIDS = [OperatorUid("unique"), OperatorUid("totals")]
PARALLELISM = 3
EVERY_ONE = [TaskReport("run", uid, SubtaskIndex(index)) for uid in UIDS for index in range(PARALLELISM)]


@given(st.permutations(EVERY_ONE))
def test_reports_are_sorted_by_subtask_whatever_their_order_of_arrival(reports: list[TaskReport]) -> None:
    found = complete_reports(reports, UIDS, PARALLELISM)
    assert list(found) == UIDS
    assert all([report.subtask for report in found[uid]] == [0, 1, 2] for uid in UIDS)


@given(st.lists(st.sampled_from(EVERY_ONE), max_size=9))
def test_anything_but_exactly_one_report_per_subtask_is_refused(reports: list[TaskReport]) -> None:
    places = [(report.uid, report.subtask) for report in reports]
    if sorted(places) == sorted((report.uid, report.subtask) for report in EVERY_ONE):
        complete_reports(reports, UIDS, PARALLELISM)
    else:
        with pytest.raises(IncompleteReportsError):
            complete_reports(reports, UIDS, PARALLELISM)


def test_a_missing_and_a_duplicate_report_are_named() -> None:
    with pytest.raises(IncompleteReportsError, match=r"unique\[0\] reported 2 times, totals\[2\] reported 0 times"):
        complete_reports([EVERY_ONE[0], *EVERY_ONE[:-1]], UIDS, PARALLELISM)


def test_a_subtask_that_does_not_exist_is_refused() -> None:
    stranger = TaskReport("run", OperatorUid("unique"), SubtaskIndex(7))
    with pytest.raises(IncompleteReportsError, match=r"unique\[7\] is unknown"):
        complete_reports([*EVERY_ONE, stranger], UIDS, PARALLELISM)


def test_a_job_without_operators_is_complete_without_reports() -> None:
    assert complete_reports([], [], PARALLELISM) == {}
