from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.spark_internals.checkpoint_directory import (
    PositionsCorruptError,
    PositionsDirectory,
    SparkStateUnsupportedError,
    merged,
    planned_files,
    shortened,
    with_commit,
    with_compacted,
)

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = 'v1\n{"batchWatermarkMs":1500,"batchTimestampMs":1}\n{"logOffset":0}'


def test_a_file_that_spark_adds_is_read_once(tmp_path: Path) -> None:
    directory = PositionsDirectory(tmp_path / "spark")
    directory.write({"metadata": '{"id":"x"}', "offsets/3": OFFSETS, "sources/0/9.compact": "v1\na\n"})
    assert directory.read_new() == {}
    (tmp_path / "spark" / "offsets" / "4").write_text(OFFSETS)
    assert directory.read_new() == {"offsets/4": OFFSETS}
    assert directory.read_new() == {}


def test_written_positions_are_found_by_spark(tmp_path: Path) -> None:
    positions = {"metadata": '{"id":"x"}', "offsets/3": OFFSETS, "sources/0/10": "v1"}
    PositionsDirectory(tmp_path / "spark").write(positions)
    assert PositionsDirectory(tmp_path / "spark").read_new() == positions


def test_checksums_and_half_written_files_are_left_out(tmp_path: Path) -> None:
    PositionsDirectory(tmp_path / "spark").write(
        {"offsets/0": OFFSETS, "offsets/.0.crc": "x", "offsets/.1.abc.tmp": "y"}
    )
    assert PositionsDirectory(tmp_path / "spark").read_new() == {"offsets/0": OFFSETS}


def test_a_stateful_operator_of_sparks_own_is_refused(tmp_path: Path) -> None:
    directory = PositionsDirectory(tmp_path / "spark")
    directory.write({"offsets/0": OFFSETS, "state/0/0/1.delta": "x"})
    with pytest.raises(SparkStateUnsupportedError):
        directory.read_new()


@pytest.mark.parametrize("name", ["../outside", "/outside", "sources/../../outside"])
def test_a_path_that_leads_out_of_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PositionsCorruptError):
        PositionsDirectory(tmp_path / "spark").write({name: "x"})
    assert not (tmp_path / "outside").exists()


def test_a_commit_takes_the_watermark_from_the_batchs_offsets() -> None:
    done = with_commit({"offsets/7": OFFSETS}, 7)
    assert done["commits/7"] == 'v1\n{"nextBatchWatermarkMs":1500}'


def test_a_commit_that_spark_wrote_is_kept() -> None:
    assert with_commit({"commits/7": "of Spark"}, 7) == {"commits/7": "of Spark"}


@pytest.mark.parametrize("offsets", [{}, {"offsets/7": "v1"}, {"offsets/7": "v1\n[]"}, {"offsets/7": "v1\nnonsense"}])
def test_a_commit_without_readable_offsets_is_refused(offsets: dict[str, str]) -> None:
    with pytest.raises(PositionsCorruptError):
        with_commit(offsets, 7)


@given(batches=st.integers(1, 60), sources=st.integers(1, 3))
def test_positions_stay_bounded_and_keep_what_a_restart_needs(batches: int, sources: int) -> None:
    positions: dict[str, str] = {}
    for batch in range(batches):
        planned = {"metadata": "m", f"offsets/{batch}": OFFSETS}
        if batch:
            planned[f"commits/{batch - 1}"] = "c"
        for source in range(sources):
            planned[f"sources/{source}/{batch}" + (".compact" if batch % 10 == 9 else "")] = str(batch)
        positions = merged(positions, planned, batch)

    last = batches - 1
    needed = {"metadata", *(f"offsets/{batch}" for batch in range(max(0, last - 1), last + 1))}
    assert needed <= set(positions)
    compacted = last - (last + 1) % 10
    for source in range(sources):
        held = {name for name in positions if name.startswith(f"sources/{source}/")}
        wanted = {f"sources/{source}/{number}" for number in range(max(compacted, -1) + 1, last + 1)}
        if compacted >= 0:
            wanted.add(f"sources/{source}/{compacted}.compact")
        assert held == wanted


def source_log(sources: int, batches: int) -> list[dict[str, str]]:
    """Returns what Spark writes for each batch, which reads one file: every tenth entry lists all files so far."""
    plans = []
    for batch in range(batches):
        planned = {f"offsets/{batch}": OFFSETS}
        for source in range(sources):
            lines = [f'{{"path":"/in/{source}/{number}","batchId":{number}}}' for number in range(batch + 1)]
            if batch % 10 == 9:
                planned[f"sources/{source}/{batch}.compact"] = "\n".join(["v1", *lines])
            else:
                planned[f"sources/{source}/{batch}"] = f"v1\n{lines[-1]}"
        plans.append(planned)
    return plans


@given(batches=st.integers(1, 60), sources=st.integers(1, 2), since=st.integers(0, 60), at_once=st.booleans())
def test_shortened_plans_give_the_same_files_to_start_from(
    batches: int, sources: int, since: int, at_once: bool
) -> None:
    whole: dict[str, str] = {}
    manifest: dict[str, str] = {}
    log: list[dict[str, str]] = []
    for batch, planned in enumerate(source_log(sources, batches)):
        if batch == min(since, batches - 1):
            manifest, log = dict(whole), []
        log.append(shortened(planned, whole))
        whole = merged(whole, planned, batch)
    found = dict(manifest)
    if at_once:
        found = merged(found, {name: content for plan in log for name, content in plan.items()}, batches - 1)
    else:
        for batch, plan in enumerate(log, batches - len(log)):
            found = merged(found, plan, batch)
    assert found == whole


def test_a_plan_is_as_long_as_its_batch_has_files_however_many_were_read_before() -> None:
    whole: dict[str, str] = {}
    lengths = []
    for batch, planned in enumerate(source_log(1, 200)):
        lengths.append(sum(map(len, shortened(planned, whole).values())))
        whole = merged(whole, planned, batch)
    assert max(lengths) < 2 * min(lengths)


def test_a_compacted_log_that_does_not_continue_the_entries_before_stays_whole() -> None:
    before = {f"sources/0/{number}": f"v1\n{number}" for number in range(9)}
    without_first = {name: content for name, content in before.items() if name != "sources/0/0"}
    for changed in ({**before, "sources/0/4": "v1\nother"}, {**before, "sources/0/4": "v1"}, without_first):
        compacted = {"sources/0/9.compact": "\n".join(["v1", *map(str, range(10))])}
        assert shortened(compacted, changed) == compacted


def test_a_plans_files_outrank_earlier_files_of_their_name() -> None:
    before = {f"sources/0/{number}": f"v1\n{number}" for number in range(9)}
    lines = ["v1", *map(str, range(8)), "other", "9"]
    planned = {"sources/0/8": "v1\nother", "sources/0/9.compact": "\n".join(lines)}
    assert shortened(planned, before) == {"sources/0/8": "v1\nother", "sources/0/9.compact.added": "v1\n9"}


def test_missing_entries_of_a_shortened_log_are_noticed() -> None:
    with pytest.raises(PositionsCorruptError):
        merged({"sources/0/8": "v1\n8"}, {"sources/0/9.compact.added": "v1\n9"}, 9)


def derived_interval(names: list[str], default: int = 10) -> int:
    """How often Spark compacts a source's log by its files' names (CompactibleFileStreamLog)."""
    found = sorted((int(name.split(".")[0]) for name in names if name.endswith(".compact")), reverse=True)
    if len(found) >= 2:
        return found[0] - found[1]
    if not found or found[0] + 1 <= default:
        return found[0] + 1 if found else default
    entries = found[0] + 1
    if default < entries // 2:
        return next((each for each in range(default, entries // 2 + 1) if entries % each == 0), entries)
    return entries


@given(compacted=st.integers(0, 120), later=st.integers(0, 40))
def test_spark_finds_the_compacted_file_that_it_looks_for(compacted: int, later: int) -> None:
    latest = compacted + later
    lines = [f"file-{number}" for number in range(latest + 1)]
    positions = {f"sources/0/{compacted}.compact": "\n".join(["v1", *lines[: compacted + 1]])}
    positions |= {f"sources/0/{number}": f"v1\n{lines[number]}" for number in range(compacted + 1, latest + 1)}
    files = {name.removeprefix("sources/0/"): content for name, content in with_compacted(positions).items()}
    interval = derived_interval(list(files))
    expected = latest - (latest + 1) % interval
    read = files[f"{expected}.compact"].split("\n")[1:] if expected >= 0 else []
    for number in range(expected + 1, latest + 1):
        read += files[str(number)].split("\n")[1:]
    assert read == lines


def test_a_source_s_log_without_a_compacted_file_stays_as_it_is() -> None:
    positions = {f"sources/0/{number}": "v1\na" for number in range(5)} | {"offsets/4": OFFSETS}
    assert with_compacted(positions) == positions


def test_a_source_s_log_with_a_gap_is_refused() -> None:
    with pytest.raises(PositionsCorruptError):
        with_compacted({"sources/0/39.compact": "v1\na", "sources/0/49": "v1\nb"})


def test_the_files_of_a_plan_are_those_of_its_own_batches() -> None:
    entries = [f'{{"path":"file:///in/a%20b/{number}.json","timestamp":1,"batchId":{number}}}' for number in range(10)]
    planned = {
        "offsets/9": "v1\n{}\n{}",
        "sources/0/9.compact": "\n".join(["v1", *entries]),
        "sources/1/3.compact.added": "v1\n" + entries[3],
        "sources/2/0": "v1",
    }
    assert planned_files(planned) == ["file:///in/a b/9.json", "file:///in/a b/3.json"]
    assert planned_files({}) == []
