"""The positions of a Spark query become the positions of a program's sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyscale.jobs.sources.positions import BatchPositions
from keyscale.jobs.spark_internals.checkpoint_directory import files_of
from keyscale.state_import.errors import ImportUnmappedError
from keyscale.state_import.input_positions import (
    KAFKA_SOURCE,
    InputKind,
    TargetSource,
    assigned_inputs,
    converted_positions,
)
from keyscale.state_import.spark_checkpoint import BatchFacts, SparkCheckpoint, file_log_names

FILES = '{"logOffset":3}'
KAFKA = '{"orders":{"1":30,"0":12}}'
OTHER = '{"offset":17}'
ORDERS = TargetSource("orders", ("kafka",))
CLICKS = TargetSource("clicks", ("FileSource",))
VIEWS = TargetSource("views", ("FileSource",))
BOTH = TargetSource("both", ("FileSource", "FileSource"))
MIXED = TargetSource("mixed", ("FileSource", "kafka"))
RATES = TargetSource("rates", ("rate",))


def checkpoint(*ends: str) -> SparkCheckpoint:
    facts = {
        "batchWatermarkMs": 5,
        "batchTimestampMs": 9,
        "conf": {"spark.sql.shuffle.partitions": "7", "spark.sql.ansi.enabled": "true"},
    }
    offsets = "\n".join(["v1", json.dumps(facts), *ends])
    files = {
        "metadata": '{"id":"query"}',
        "offsets/6": offsets,
        "offsets/7": offsets,
        "commits/7": 'v1\n{"nextBatchWatermarkMs":5}',
        **{f"sources/{number}/3": f'v1\n{{"path":"{number}"}}' for number, end in enumerate(ends) if end == FILES},
    }
    return SparkCheckpoint("", BatchFacts(7, 5, 5, 9), files, ends)


def converted(sources: list[TargetSource], assigned: dict[str, list[int]], *ends: str) -> dict[str, str]:
    positions = converted_positions(checkpoint(*ends), sources, assigned)
    assert positions is not None
    assert positions.sources == tuple(uid for uid in (source.uid for source in sources) if uid in assigned)
    return files_of(positions)


@pytest.mark.parametrize(
    ("end", "kind"),
    [(FILES, InputKind.FILES), (KAFKA, InputKind.KAFKA), (OTHER, InputKind.OTHER), (None, InputKind.NOTHING)],
)
def test_the_kind_of_an_input_is_seen_in_its_end(end: str | None, kind: InputKind) -> None:
    assert InputKind.of(end) is kind


def test_the_positions_of_files_stay_as_they_are_without_the_settings_of_sparks_state() -> None:
    files = converted([CLICKS], {"clicks": [0]}, FILES)
    assert sorted(files) == ["commits/7", "metadata", "offsets/6", "offsets/7", "sources/0/3"]
    version, facts, end = files["offsets/7"].splitlines()
    assert (version, end, files["sources/0/3"]) == ("v1", FILES, 'v1\n{"path":"0"}')
    assert json.loads(facts) == {
        "batchWatermarkMs": 0,
        "batchTimestampMs": 9,
        "conf": {"spark.sql.ansi.enabled": "true"},
    }


def test_inputs_are_numbered_in_the_order_of_the_programs_sources() -> None:
    files = converted([CLICKS, ORDERS], {"orders": [0], "clicks": [1]}, KAFKA, FILES)
    assert files["offsets/7"].splitlines()[2:] == [FILES, KAFKA]
    assert files["sources/0/3"] == 'v1\n{"path":"1"}'
    assert "sources/1/3" not in files


def test_kafka_offsets_become_the_next_positions_of_keyscales_source() -> None:
    files = converted([TargetSource("orders", (KAFKA_SOURCE,))], {"orders": [0]}, KAFKA)
    positions = BatchPositions.from_json(json.loads(files["offsets/7"].splitlines()[2]))
    assert positions.reached == {
        "orders/0": {"offset": 12, "topic_id": ""},
        "orders/1": {"offset": 30, "topic_id": ""},
    }
    assert positions.ranges() == []


def test_without_any_source_there_are_no_positions() -> None:
    assert converted_positions(checkpoint(FILES), [CLICKS], {}) is None


@pytest.mark.parametrize(
    ("kinds", "sources", "chosen", "assigned"),
    [
        ([InputKind.FILES], [CLICKS], {}, {"clicks": [0]}),
        ([InputKind.KAFKA, InputKind.FILES], [CLICKS, ORDERS], {}, {"clicks": [1], "orders": [0]}),
        ([InputKind.FILES, InputKind.FILES], [CLICKS, VIEWS], {0: "views", 1: "clicks"}, {"views": [0], "clicks": [1]}),
        ([InputKind.FILES, InputKind.KAFKA], [CLICKS], {1: None}, {"clicks": [0]}),
        ([InputKind.FILES, InputKind.FILES], [BOTH], {}, {"both": [0, 1]}),
        ([InputKind.FILES, InputKind.KAFKA], [RATES, MIXED], {}, {"mixed": [0, 1]}),
    ],
)
def test_an_input_goes_to_the_named_source_or_to_the_only_one_of_its_kind(
    kinds: list[InputKind], sources: list[TargetSource], chosen: dict[int, Any], assigned: dict[str, list[int]]
) -> None:
    assert assigned_inputs(kinds, sources, chosen) == assigned


@pytest.mark.parametrize(
    ("kinds", "sources", "chosen", "message"),
    [
        ([InputKind.FILES], [CLICKS, VIEWS], {}, "may be of several sources"),
        ([InputKind.OTHER], [CLICKS, ORDERS], {}, "the sources of the program are 'clicks', 'orders'"),
        ([InputKind.KAFKA], [CLICKS], {}, "positions of kafka, and source 'clicks' reads FileSource"),
        ([InputKind.KAFKA, InputKind.FILES], [MIXED], {}, "positions of kafka, and source 'mixed' reads FileSource"),
        ([InputKind.FILES], [CLICKS], {0: "views"}, "the program has no source 'views'; its sources are 'clicks'"),
        ([InputKind.FILES], [CLICKS], {1: "clicks"}, "the query has no input 1"),
        ([InputKind.FILES, InputKind.FILES], [CLICKS], {}, "'clicks' has 1 input, and the query has 2"),
    ],
)
def test_an_input_whose_source_is_unknown_or_of_another_kind_is_refused(
    kinds: list[InputKind], sources: list[TargetSource], chosen: dict[int, Any], message: str
) -> None:
    with pytest.raises(ImportUnmappedError, match=message):
        assigned_inputs(kinds, sources, chosen)


@pytest.mark.parametrize(
    ("names", "entry", "needed"),
    [
        (["0", "1", "2"], 1, ["0", "1"]),
        (["7", "8", "9.compact", "10", "11"], 10, ["9.compact", "10"]),
        (["8", "9", "9.compact", "19.compact"], 9, ["9.compact"]),
        (["8", "9.compact"], 8, ["8"]),
    ],
)
def test_the_log_of_files_is_read_from_the_last_compacted_entry_and_without_later_batches(
    names: list[str], entry: int, needed: list[str]
) -> None:
    assert file_log_names(names, entry) == needed
