"""An answer has as many exceptions as its size allows, and at least one."""

from __future__ import annotations

import pytest

from keyscale.api.jobs.exceptions import ANSWER_CHARACTERS_MAX, rows_that_fit
from keyscale.db.models import JobException

HALF = ANSWER_CHARACTERS_MAX // 2


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [
        ([], 1),
        ([2 * ANSWER_CHARACTERS_MAX], 1),
        ([HALF, HALF], 2),
        ([HALF, HALF + 1, 1], 1),
        ([HALF, HALF, 1], 2),
        ([1, 1, 1], 3),
    ],
)
def test_the_texts_of_an_answer_fill_it_up_to_its_limit(sizes: list[int], fit: int) -> None:
    rows = [JobException(message="m", traceback="t" * (size - 1)) for size in sizes]
    assert rows_that_fit(rows) == fit
    without = [JobException(message="m" * size, traceback=None) for size in sizes]
    assert rows_that_fit(without) == fit
