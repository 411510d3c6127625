"""Positions in a checkpoint are compared with what its sources still have, whatever a job may have written there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.protocol.messages import REPORTED_SPLITS_MAX, Heartbeat, SourceMetrics
from keyscale.jobs.protocol.source_retention import comparable_positions, reported_sources, source_retention

offsets = st.integers(0, 2**63 - 1)


def ends(**splits: Any) -> str:
    return json.dumps({"version": 1, "splits": {name: [0, end] for name, end in splits.items()}})


def reported(**splits: Any) -> list[SourceMetrics]:
    return [SourceMetrics(uid="orders", earliest=splits)]


def at(offset: int, topic_id: str = "t1") -> dict[str, Any]:
    return {"offset": offset, "topic_id": topic_id}


@given(
    stored=st.dictionaries(st.sampled_from("abcd"), offsets), first=st.dictionaries(st.sampled_from("abcd"), offsets)
)
@pytest.mark.parametrize("is_kafka", [False, True])
def test_records_are_gone_where_a_split_begins_after_the_checkpoint(
    is_kafka: bool, stored: dict[str, int], first: dict[str, int]
) -> None:
    form = at if is_kafka else int
    found = source_retention(
        ["orders"],
        [ends(**{split: form(offset) for split, offset in stored.items()})],
        reported(**{split: form(offset) for split, offset in first.items()}),
    )
    gone = [split for split in sorted(stored.keys() & first.keys()) if stored[split] < first[split]]
    assert [problem.split("split ")[1][0] for problem in found.problems] == gone
    assert found.unknown == ([] if first and stored.keys() <= first.keys() else ["orders"])


def test_the_reason_is_said_in_words() -> None:
    found = source_retention(["orders"], [ends(**{"orders/3": at(120)})], reported(**{"orders/3": at(500)}))
    said = "source 'orders': split orders/3 begins at 500, and the checkpoint continues at 120"
    assert found.problems == [f"{said}; a job starts from it only if it skips lost records"]


@pytest.mark.parametrize(
    ("stored", "first", "is_gone"),
    [
        (120, at(500), True),  # the form up to version 0.1
        (500, at(500), False),
        (at(900), at(0, "t2"), True),
        (at(900, ""), at(0, "t2"), False),
        (at(900), at(0, ""), False),
        (at(3, ""), at(4, "t2"), True),
    ],
)
def test_a_topic_that_was_created_again_has_lost_all_records(stored: Any, first: Any, is_gone: bool) -> None:
    found = source_retention(["orders"], [ends(a=stored)], reported(a=first))
    assert (bool(found.problems), found.unknown) == (is_gone, [])


@pytest.mark.parametrize(
    "stored", ["text", True, None, 2**70, 1.5, [1], {"offset": "1", "topic_id": ""}, {}, at(2**64)]
)
def test_positions_of_another_form_are_not_compared(stored: Any) -> None:
    found = source_retention(["orders"], [ends(a=stored)], reported(a=at(5)))
    assert found == ([], ["orders"])


@pytest.mark.parametrize("damaged", ["", "{", '{"splits":{"a":1}}', '{"orders":{"0":5}}', '{"splits":' + "[" * 200_000])
def test_damaged_positions_are_a_problem(damaged: str) -> None:
    found = source_retention(["orders"], [damaged], reported(a=5))
    assert found == (["source 'orders': its positions cannot be read"], [])


def test_deeply_nested_positions_and_numbers_of_many_digits_are_no_failure() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    for hostile in (deep, "9" * 10_000, f'{{"offset": {"9" * 10_000}}}'):
        found = source_retention(["orders"], [f'{{"splits":{{"a":[0,{hostile}]}}}}'], reported(a=5))
        assert found.problems or found.unknown


def test_a_source_that_has_read_nothing_loses_nothing_and_a_silent_source_is_unknown() -> None:
    both = ["orders", "clicks"]
    assert source_retention(both, ["-", "-"], []) == ([], [])
    assert source_retention(both, [ends(a=7), ends(a=7)], reported(a=5)) == ([], ["clicks"])
    assert source_retention(both, [ends(a=7)], reported(a=5)) == ([], both), "whose input it is, is not known"
    assert source_retention(["orders"], [" " * (5 << 20)], reported(a=5)) == ([], ["orders"])
    assert source_retention(["orders"], [ends(a=7, b=7)], reported(a=5)) == ([], ["orders"]), "nothing is known of b"


def test_what_is_said_of_hostile_names_is_short() -> None:
    uid = "u" * 1_000_000
    splits = {str(number): number + 1 for number in range(REPORTED_SPLITS_MAX)}
    found = source_retention([uid], [ends(**dict.fromkeys(splits, 0))], [SourceMetrics(uid=uid, earliest=splits)])
    assert len(found.problems) == REPORTED_SPLITS_MAX
    assert max(map(len, found.problems)) < 500
    [damaged] = source_retention([uid], ["{"], [SourceMetrics(uid=uid, earliest={"a": 1})]).problems
    assert len(damaged) < 500
    again = source_retention(["orders"] * 1000, [ends(a=1)] * 1000, reported(a=5))
    assert again == ([], ["orders"] * 1000), "no two sources have the same uid"


def test_a_driver_reports_only_positions_that_can_be_compared_and_not_too_many() -> None:
    assert comparable_positions({"a": 5}) == {"a": 5}
    assert comparable_positions({"a": at(5)}) == {"a": at(5)}
    for other in ({"a": "text"}, {"a": 2**80}, {"a": True}, {"a": [1]}, {1: 5}, {"a" * 301: 5}, [("a", 5)], None, 5):
        assert comparable_positions(other) == {}, other  # type: ignore[arg-type]  # a user's code may return anything
    many = {str(number): number for number in range(REPORTED_SPLITS_MAX)}
    assert len(comparable_positions(many)) == REPORTED_SPLITS_MAX
    assert comparable_positions({**many, "one more": 1}) == {}
    together = reported_sources(["first", "second", "third"], [{"a": 1}, many, {"c": 3}])
    assert [source.uid for source in together] == ["first", "third"]
    assert reported_sources(["one"], [{"a": 1}, {"b": 1}]) == []
    heartbeat = Heartbeat.model_validate({"state": "RUNNING", "metrics": {"sources": together}})
    assert Heartbeat.model_validate_json(heartbeat.model_dump_json()) == heartbeat


def test_positions_of_two_forms_or_none_cannot_be_compared() -> None:
    for stored, first in ((at(9), 500), ("9", 500), (None, at(500)), ({"offset": "9"}, at(500))):
        found = source_retention(["orders"], [ends(a=stored)], reported(a=first))
        assert (found.problems, found.unknown) == ([], ["orders"])


def test_each_source_is_compared_with_its_own_report() -> None:
    first = [SourceMetrics(uid="orders", earliest={"a": 5}), SourceMetrics(uid="clicks", earliest={"a": 50})]
    found = source_retention(["clicks", "orders", "files"], [ends(a=10), ends(a=10), ends(a=10)], first)
    assert [problem.partition(":")[0] for problem in found.problems] == ["source 'clicks'"]
    assert found.unknown == ["files"]
    assert source_retention(["orders", "orders"], [ends(a=1), ends(a=9)], first).unknown == ["orders", "orders"]
    assert source_retention(["orders", "clicks"], [ends(a=1)], first).unknown == ["orders", "clicks"]
    broken = source_retention(["orders"], ["{"], first)
    assert broken.problems == ["source 'orders': its positions cannot be read"]
