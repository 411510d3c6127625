"""The streams of a job's sources are those of Spark's analysed plans, each counted once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it publishes no types

from keyscale.jobs.spark_internals.source_inputs import inputs_up_to, kinds_of, names_of, options_of, streams_of
from tests.support.spark.played_jvm import answering, sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def unknown() -> Any:
    raise Py4JError("no such method")


def leaf(kind: str, name: str | None = None, options: dict[str, str] | None = None, *, streams: bool = True) -> Any:
    found = answering(isStreaming=streams, getClass=answering(getSimpleName=kind))
    found.sourceName = unknown if name is None else lambda: name
    found.extraOptions = unknown if options is None else lambda: answering(asCaseSensitiveMap=options)
    return found


def frame(*leaves: Any) -> Any:
    analyzed = answering(collectLeaves=sequence(*leaves))
    return SimpleNamespace(_jdf=answering(queryExecution=answering(analyzed=analyzed)))


FILES = leaf("StreamingRelation", "FileSource[/in]")
KAFKA = leaf("StreamingRelationV2", "kafka", {"Subscribe": "A", "kafka.bootstrap.SERVERS": "x:1"})
OLD = leaf("LegacySource")
TABLE = leaf("LocalRelation", streams=False)
FRAMES = [frame(FILES, TABLE), frame(KAFKA, FILES), frame(TABLE), frame(OLD, KAFKA)]


def test_a_stream_of_several_frames_is_one_input_and_a_table_is_none() -> None:
    assert inputs_up_to(FRAMES) == [1, 2, 2, 3]
    assert names_of(FRAMES) == ["FileSource[/in]", "kafka", "LegacySource"]
    assert streams_of(FRAMES) == ["FileSource", "kafka", "LegacySource"]
    assert options_of(FRAMES) == [{}, {"subscribe": "A", "kafka.bootstrap.servers": "x:1"}, {}]
    assert [kinds_of(each) for each in FRAMES] == [
        ("FileSource",),
        ("kafka", "FileSource"),
        (),
        ("LegacySource", "kafka"),
    ]


def test_with_the_use_switched_off_each_frame_counts_and_nothing_else_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_SPARK_WITHOUT", "source-inputs")
    assert inputs_up_to(FRAMES) == [1, 2, 3, 4]
    ask: list[Callable[[Any], Any]] = [names_of, streams_of, options_of]
    assert [each(FRAMES) for each in ask] == [[], [], []]
    assert kinds_of(FRAMES[0]) == ()
