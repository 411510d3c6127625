"""A batch has its records if no source has lost a range of the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.replay import oldest_records
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


def test_the_files_and_the_ranges_of_a_batch_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    kafka = SimpleNamespace(losses=lambda ranges: {split: 1 for split in ranges if split in gone})
    streams = {"frame of kafka": kafka, "frame of files": None}
    sources = SimpleNamespace(nodes=[SimpleNamespace(frame=frame) for frame in streams])
    monkeypatch.setattr(oldest_records, "planned_files", lambda positions: [f"file of {positions}"])
    monkeypatch.setattr(oldest_records, "missing_files", lambda _, files: [each for each in files if each in gone])
    monkeypatch.setattr(oldest_records, "sources_of", lambda *_: sources)
    monkeypatch.setattr(oldest_records, "streams_of", lambda frames: frames)
    monkeypatch.setattr(oldest_records, "source_of", streams.__getitem__)
    ends = {("p", 7, 2): (END, "{}")}
    monkeypatch.setattr(oldest_records, "ends_of", lambda *of: ends[of])
    nothing: Any = None

    def has_records(*lost: str, is_planned: bool = True) -> bool:
        gone[:] = lost
        planned = SimpleNamespace(positions="p") if is_planned else None
        resume = SimpleNamespace(planned=planned, time=SimpleNamespace(time_batches=2))
        batch: Any = SimpleNamespace(batch_id=9, before=SimpleNamespace(resume=resume))
        return oldest_records._has_records(nothing, nothing, batch)

    assert has_records()
    assert not has_records("file of p")
    assert not has_records("a")
    assert has_records("file of p", "a", is_planned=False), "a batch of time alone has no records"
