"""A sink applies the tokens of its own history, once."""

from __future__ import annotations

import pytest

from keyscale.identifiers import Attempt, BatchId
from keyscale.jobs.sinks.published import Published, Step, is_rewound, last_kept, next_step
from keyscale.state.documents.rewind import Rewind


def test_the_first_batch_is_applied() -> None:
    assert next_step(None, attempt=1, batch_id=0) is Step.APPLY


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_next_batch_is_applied_by_the_attempt_that_holds_the_sink(attempt: int) -> None:
    assert next_step(Published(attempt=1, batch_id=4), attempt, batch_id=5) is Step.APPLY


def test_a_visible_batch_is_done_even_for_an_attempt_that_was_replaced() -> None:
    assert next_step(Published(attempt=1, batch_id=5), attempt=1, batch_id=5) is Step.DONE
    assert next_step(Published(attempt=3, batch_id=5), attempt=1, batch_id=5) is Step.DONE


def test_a_batch_of_an_older_attempt_after_the_restored_savepoint_is_refused() -> None:
    assert next_step(Published(attempt=2, batch_id=5), attempt=1, batch_id=9) is Step.REFUSE


def test_a_newer_attempt_replaces_the_output_of_a_history_that_the_job_has_left() -> None:
    assert next_step(Published(attempt=1, batch_id=9), attempt=2, batch_id=6) is Step.REPLACE


def test_a_job_is_rewound_if_more_is_visible_than_it_has_committed() -> None:
    assert is_rewound(Published(attempt=1, batch_id=9), 5)
    assert not is_rewound(Published(attempt=1, batch_id=5), 5)
    assert not is_rewound(None, -1)


def rewind(attempt: int, batch_id: int) -> Rewind:
    return Rewind(Attempt(attempt), BatchId(batch_id))


@pytest.mark.parametrize(
    ("rewinds", "kept"),
    [
        ([], 20),
        ([rewind(1, -1)], 20),
        ([rewind(2, -1)], -1),
        ([rewind(2, 5)], 5),
        ([rewind(1, -1), rewind(2, 3), rewind(3, 5)], 3),
        ([rewind(2, 50)], 20),
    ],
)
def test_a_sink_keeps_its_output_up_to_the_first_rewind_after_its_marker(rewinds: list[Rewind], kept: int) -> None:
    assert last_kept(Published(attempt=1, batch_id=9), 20, rewinds) == kept
