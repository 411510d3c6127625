"""A driver's log: bounded, read while it is written, and the offset of a byte never changes."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.launching import driver_log
from keyscale.api.launching.driver_log import LOG_FILE, LogWriter, open_log

if TYPE_CHECKING:
    from pathlib import Path

PART_BYTES = 1000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_log, "PART_BYTES_MAX", PART_BYTES)


def line(number: int) -> bytes:
    return f"line {number:04}\n".encode()


def test_a_log_that_grows_without_end_keeps_its_newest_lines_and_their_offsets(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for number in range(1000):
        log.write(line(number))
        with open_log(tmp_path) as opened:
            assert opened.end == 10 * (number + 1)
            assert opened.read(10 * number, 10) == line(number)
            assert opened.read(opened.begin, 10) == line(opened.begin // 10)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * PART_BYTES
    assert opened.end - opened.begin >= PART_BYTES
    with open_log(tmp_path) as opened:
        assert opened.read(opened.begin, 10 * PART_BYTES) == b"".join(map(line, range(opened.begin // 10, 1000)))


def test_an_open_log_stays_as_it_was_whatever_is_written(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for number in range(150):
        log.write(line(number))
    with open_log(tmp_path) as opened:
        for number in range(150, 1000):
            log.write(line(number))
        assert opened.read(0, 10_000) == b"".join(map(line, range(150)))


def test_a_reader_beside_the_writer_sees_whole_logs(tmp_path: Path) -> None:
    log, ended = LogWriter(tmp_path), threading.Event()

    def write() -> None:
        for number in range(5000):
            log.write(line(number % 10_000))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while not ended.is_set() or not looks:
        with open_log(tmp_path) as opened:
            content = opened.read(opened.begin, opened.end - opened.begin)
            assert content == b"".join(map(line, range(opened.begin // 10, opened.end // 10)))
            looks += 1
    writer.join()


def test_a_writer_that_dies_between_two_parts_leaves_a_log_that_can_be_read(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for number in range(150):
        log.write(line(number))
    (tmp_path / LOG_FILE).rename(tmp_path / f"{LOG_FILE}.1000")
    with open_log(tmp_path) as opened:
        assert (opened.begin, opened.read(1000, 10_000)) == (1000, b"".join(map(line, range(100, 150))))


def test_a_part_that_cannot_be_begun_on_a_full_disk_is_begun_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path)
    for number in range(250):
        log.write(line(number))
    with monkeypatch.context() as full:
        full.setattr(LogWriter, "_open", refuse)
        for number in range(250, 310):
            log.write(line(number))
    for number in range(300, 350):
        log.write(line(number))
    with open_log(tmp_path) as opened:
        assert opened.end == 3500
        assert opened.read(2500, 10_000) == b"".join(map(line, range(250, 350)))


def refuse(_: LogWriter) -> int:
    raise OSError(errno.ENOSPC, "no space left")


def test_a_run_without_a_log_has_an_empty_one(tmp_path: Path) -> None:
    with open_log(tmp_path / "none") as opened:
        assert (opened.begin, opened.end, opened.read(0, 10)) == (0, 0, b"")


@given(st.lists(st.binary(min_size=1, max_size=700), max_size=30), st.integers(0, 3000), st.integers(0, 3000))
def test_a_part_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], offset: int, length: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = LogWriter(directory)
    for text in texts:
        log.write(text)
    written = b"".join(texts)
    with open_log(directory) as opened:
        assert opened.end == len(written)
        at = max(offset, opened.begin)
        assert opened.read(at, length) == written[at : at + length]
    os.close(log._descriptor)
