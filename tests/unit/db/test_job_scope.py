"""A scope covers the jobs that it names and the jobs with its labels, and no other job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.db.job_scope import EVERYTHING, JobScope

if TYPE_CHECKING:
    from collections.abc import Mapping

BILLING = {"team": "billing", "stage": "live"}


@pytest.mark.parametrize(
    ("scope", "labels", "is_covered"),
    [
        (EVERYTHING, {}, True),
        (JobScope(jobs=frozenset({"id"})), {}, True),
        (JobScope(jobs=frozenset({"name"})), {}, True),
        (JobScope(jobs=frozenset({"nam"})), BILLING, False),
        (JobScope(jobs=frozenset({"other"}), labels={"team": "billing"}), BILLING, True),
        (JobScope(labels={"team": "billing"}), BILLING, True),
        (JobScope(labels=BILLING), BILLING, True),
        (JobScope(labels=BILLING), {"team": "billing"}, False),
        (JobScope(labels={"team": "billing"}), {"team": "flights"}, False),
        (JobScope(labels={"team": "billing"}), {}, False),
        (JobScope(any_labels=frozenset(BILLING.items())), {"team": "billing"}, True),
        (JobScope(any_labels=frozenset(BILLING.items())), {"team": "live", "stage": "billing"}, False),
        (JobScope(any_labels=frozenset(BILLING.items())), {}, False),
    ],
)
def test_a_scope_covers_the_jobs_that_it_names_and_those_with_its_labels(
    scope: JobScope, labels: Mapping[str, str], is_covered: bool
) -> None:
    assert scope.covers(job_id="id", name="name", labels=labels) is is_covered
    assert scope.is_everything is (scope == EVERYTHING)


def test_equal_scopes_have_equal_keys_and_other_scopes_have_other_keys() -> None:
    some = [
        EVERYTHING,
        JobScope(jobs=frozenset({"a"})),
        JobScope(labels={"a": "b"}),
        JobScope(labels={"a": "c"}),
        JobScope(any_labels=frozenset({("a", "b")})),
    ]
    assert len({scope.key for scope in some}) == len(some)
    assert JobScope(labels={"a": "b", "c": "d"}).key == JobScope(labels={"c": "d", "a": "b"}).key
