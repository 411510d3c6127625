"""However the sources of a job change, each continues where it was, a new one starts, and a lost one is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import OperatorUid
from keyscale.jobs.runtime.batch.source_order import (
    SourceInputs,
    check_kinds,
    order_of,
    positions_for,
    recorded_order,
    recorded_positions,
    stored_positions,
    without_sources,
)
from keyscale.jobs.runtime.errors import RestoreRefusedError
from keyscale.jobs.spark_internals.checkpoint_directory import PositionsCorruptError
from keyscale.state.documents.source_positions import KINDS_NAME, ORDER_NAME, SourcePositions


def uids(text: str) -> list[OperatorUid]:
    return [OperatorUid(uid) for uid in text.split()]


def offsets(*ends: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *ends])


def recorded(*ends: str, order: str | None = None) -> dict[str, str]:
    files = {"metadata": "of the query", "offsets/3": offsets(*ends), "commits/3": "v1"}
    return files if order is None else {**files, ORDER_NAME: json.dumps(order.split())}


def test_a_job_that_has_never_run_has_its_sources_in_the_scripts_order() -> None:
    assert recorded_order({}) == ()
    assert order_of(uids("b a"), ()) == ("b", "a")


def test_an_only_source_without_a_uid_leaves_positions_as_spark_wrote_them() -> None:
    assert positions_for({}, uids("source"), [1]) == {}
    assert positions_for(recorded("7"), uids("source"), [1]) == recorded("7")


def test_sources_are_where_they_were_whatever_their_order_in_the_script() -> None:
    assert order_of(uids("b c a"), uids("a b")) == ("a", "b", "c")


def test_a_source_that_is_gone_is_refused_by_name() -> None:
    with pytest.raises(RestoreRefusedError, match=r"'b'.*'a', 'c'"):
        order_of(uids("a c"), uids("a b"))


def test_an_only_source_without_a_uid_may_get_one_but_not_change_it() -> None:
    assert order_of(uids("clicks"), recorded_order(recorded("7"))) == ("clicks",)
    with pytest.raises(RestoreRefusedError, match="'clicks'"):
        order_of(uids("views"), recorded_order(recorded("7", order="clicks")))


def test_a_further_source_is_accepted_only_if_the_first_one_keeps_its_default_uid() -> None:
    assert order_of(uids("new source"), recorded_order(recorded("7"))) == ("source", "new")
    with pytest.raises(RestoreRefusedError, match="'source'"):
        order_of(uids("new clicks"), recorded_order(recorded("7")))


def test_a_new_source_has_read_nothing_in_any_recorded_batch() -> None:
    files = positions_for(recorded("7", "8"), uids("source new"), [2, 5])
    assert files["offsets/3"] == offsets("7", "8", "-", "-", "-")
    assert recorded_order(files) == ("source", "new")
    assert files["commits/3"] == "v1"


def test_a_new_source_that_shares_a_stream_has_no_place_of_its_own() -> None:
    assert positions_for(recorded("7"), uids("source new"), [1, 1])["offsets/3"] == offsets("7")


def test_a_source_that_has_other_inputs_than_before_is_refused() -> None:
    with pytest.raises(RestoreRefusedError, match="had 1 of Spark's inputs in all and now have 2"):
        positions_for(recorded("7", order="a"), uids("a"), [2])
    with pytest.raises(RestoreRefusedError, match="had 2 of Spark's inputs in all and now have 1"):
        positions_for(recorded("7", "8", order="a"), uids("a b"), [1, 2])


NAMES = (
    *("metadata", "offsets/3", "offsets/12", "commits/3", "commits/12", "commits/2", "unknown/1", "offsets/x"),
    *("sources/0/9.compact", "sources/0/9", "sources/0/10", "sources/1/0", "sources/0/9.compact.added"),
)
names = st.sampled_from(NAMES)


@given(st.dictionaries(names, st.text(alphabet="v1{}-é\n", max_size=12)), st.sampled_from([None, "web app", "web"]))
def test_positions_are_the_same_files_after_a_checkpoint(files: dict[str, str], order: str | None) -> None:
    recorded = files if order is None else {**files, ORDER_NAME: msgspec.json.encode(order.split()).decode()}
    stored = msgspec.json.encode(stored_positions(recorded))
    # The order is recorded from the first batch on.
    assert not files or recorded_positions(msgspec.json.decode(stored, type=SourcePositions)) == recorded
    assert recorded_positions(files) == files, "those of version 0.1"


def test_an_order_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(PositionsCorruptError):
        recorded_order({ORDER_NAME: "{"})


@given(st.permutations(["a", "b", "c"]), st.integers(1, 3), st.permutations(["a", "b", "c", "d"]))
def test_each_source_finds_its_own_line_again(before: list[str], count: int, now: list[str]) -> None:
    written = recorded(*(f"end of {uid}" for uid in before[:count]), order=" ".join(before[:count]))
    order = order_of(uids(" ".join(now)), recorded_order(written))
    files = positions_for(written, order, [1, 2, 3, 4])
    lines = dict(zip(order, files["offsets/3"].splitlines()[2:], strict=True))
    assert lines == {uid: f"end of {uid}" if uid in before[:count] else "-" for uid in now}
    assert positions_for(files, order_of(uids(" ".join(now)), recorded_order(files)), [1, 2, 3, 4]) == files


@given(
    st.permutations(["a", "b", "c", "d"]), st.sampled_from("abcd"), st.lists(st.integers(1, 3), min_size=4, max_size=4)
)
def test_a_dropped_source_takes_its_own_inputs_with_it_and_no_others(
    before: list[str], gone: str, counts: list[int]
) -> None:
    """Each input is a line of the offsets, and a folder."""
    inputs = [f"{uid}{number}" for uid, count in zip(before, counts, strict=True) for number in range(count)]
    written = recorded(*inputs, order=" ".join(before))
    written |= {f"sources/{place}/0": name for place, name in enumerate(inputs)}
    declared = [SourceInputs(OperatorUid(u), n) for u, n in zip(before, counts, strict=True) if u != gone]
    files = without_sources(written, uids(gone), declared)
    left = [name for name in inputs if not name.startswith(gone)]
    assert files["offsets/3"] == offsets(*left)
    assert {name: files[name] for name in files if name.startswith("sources/")} == {
        f"sources/{place}/0": name for place, name in enumerate(left)
    }
    assert recorded_order(files) == tuple(uid for uid in before if uid != gone)


def test_of_several_dropped_sources_it_must_be_known_which_inputs_were_theirs() -> None:
    written = recorded("1", "2", "3", order="a b c")
    kept = [SourceInputs(OperatorUid("b"))]
    assert without_sources(written, uids("a c"), kept)["offsets/3"] == offsets("2")
    with pytest.raises(RestoreRefusedError, match="'a', 'c'"):
        without_sources(recorded("1", "2", "3", "4", "5", order="a b c"), uids("a c"), kept)
    with pytest.raises(RestoreRefusedError, match="'a'"):
        without_sources(recorded("1", "2", order="a b"), uids("a"), [SourceInputs(OperatorUid("b"), 3)])


def test_all_sources_may_be_replaced() -> None:
    files = without_sources(recorded("1", "2", order="a b"), uids("a b"), [SourceInputs(OperatorUid("c"))])
    assert files["offsets/3"] == offsets()
    assert positions_for(files, order_of(uids("c"), recorded_order(files)), [1])["offsets/3"] == offsets("-")


def test_kinds_are_recorded_once_and_compared_where_both_are_known() -> None:
    a = OperatorUid("a")
    written = positions_for(recorded("1", order="a"), [a], [1], {a: ["kafka"]})
    assert positions_for(written, [a], [1], {a: ["kafka"]}) == written
    check_kinds(written, [SourceInputs(a, 1, ("kafka",)), SourceInputs(OperatorUid("b"), 1, ("rate",))])
    check_kinds(written, [SourceInputs(a)])
    check_kinds(recorded("1", order="a"), [SourceInputs(a, 1, ("rate",))])
    with pytest.raises(RestoreRefusedError, match="was of kind kafka and is now rate"):
        check_kinds(written, [SourceInputs(a, 1, ("rate",))])
    unnamed = positions_for(recorded("1"), uids("source"), [1], {OperatorUid("source"): ["kafka"]})
    with pytest.raises(RestoreRefusedError, match="source 'a' was of kind kafka and is now rate"):
        check_kinds(unnamed, [SourceInputs(a, 1, ("rate",))])
    with pytest.raises(PositionsCorruptError):
        check_kinds({**written, KINDS_NAME: "["}, [SourceInputs(a, 1, ("rate",))])
