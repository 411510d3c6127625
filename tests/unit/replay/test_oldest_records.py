"""A batch has its records if no source has lost a range of the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.replay.oldest_records import has_losses

END = '{"version":1,"splits":{"a":[3,9],"b":[1,1]}}'


@pytest.mark.parametrize(
    ("earliest", "end", "expected"),
    [
        pytest.param(3, END, False, id="all records are kept"),
        pytest.param(4, END, True, id="the first record is gone"),
        pytest.param(4, None, False, id="the batch read nothing"),
    ],
)
def test_a_batch_lacks_records_if_a_source_begins_after_the_start_of_a_range(
    earliest: int, end: str | None, expected: bool
) -> None:
    def losses(ranges: dict[str, tuple[int, int]]) -> dict[str, int]:
        return {split: earliest - start for split, (start, _) in ranges.items() if start < earliest}

    kafka: Any = SimpleNamespace(losses=losses)
    assert has_losses([None, kafka], ["{}", end]) is expected
