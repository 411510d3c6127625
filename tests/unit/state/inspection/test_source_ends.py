"""The ends of sources are found in a snapshot's positions and in later batches' positions."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.state.documents.source_positions import KINDS_NAME, ORDER_NAME, BatchEnd, SourcePositions
from keyscale.state.inspection import source_ends as module
from keyscale.state.inspection.source_ends import source_ends

if TYPE_CHECKING:
    import pytest

HEAD = "v1\n{}"


def point(monkeypatch: pytest.MonkeyPatch, stored: Any, files: dict[str, str], *, replaces: bool = False) -> Any:
    """A point with a snapshot's positions, and with the files of later batches."""
    monkeypatch.setattr(module, "read_positions", lambda *_: stored)
    manifest = SimpleNamespace(positions="positions")
    resume = SimpleNamespace(positions=files, replaces_positions=replaces)
    return SimpleNamespace(store=None, manifest=manifest, resume=resume)


def order_and_kinds(kinds: dict[str, list[str]]) -> dict[str, str]:
    return {ORDER_NAME: json.dumps(list(kinds)), KINDS_NAME: json.dumps(kinds)}


STORED = SourcePositions(
    sources=("a",),
    query=None,
    batches=(BatchEnd(3, "v1", "{}", ("a3",)), BatchEnd(4, "v1", "{}", ("a4",))),
    others={KINDS_NAME: json.dumps({"a": ["kafka"]})},
)


def test_a_snapshot_alone_has_the_end_of_its_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_ends(point(monkeypatch, STORED, {})) == {"a": ["a4"]}


def test_a_later_batch_counts_with_the_sources_that_it_has_added(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "offsets/9": f"{HEAD}\na9",
        "offsets/10": f"{HEAD}\na10\nb10\nc10",
        **order_and_kinds({"a": ["kafka"], "b": ["kafka", "files"]}),
    }
    assert source_ends(point(monkeypatch, STORED, files)) == {"a": ["a10"], "b": ["b10", "c10"]}


def test_files_of_an_earlier_version_are_overwritten_by_later_files(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"offsets/5": f"{HEAD}\nold", ORDER_NAME: json.dumps(["a"])}
    assert source_ends(point(monkeypatch, stored, {})) == {"a": ["old"]}
    assert source_ends(point(monkeypatch, stored, {"offsets/5": f"{HEAD}\nnew"})) == {"a": ["new"]}


def test_an_attempt_that_replaces_the_positions_has_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"offsets/2": f"{HEAD}\nb2", **order_and_kinds({"b": ["kafka"]})}
    assert source_ends(point(monkeypatch, STORED, files, replaces=True)) == {"b": ["b2"]}


def test_without_uids_all_ends_belong_to_one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"offsets/1": f"{HEAD}\none\ntwo"}
    assert source_ends(point(monkeypatch, stored, {})) == {module.UNNAMED_SOURCE: ["one", "two"]}
    assert source_ends(point(monkeypatch, {}, {})) == {}
