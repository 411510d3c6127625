"""Objects that the local store has acknowledged survive a power loss, and one that it could not sync has no name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.power_loss import SyncedDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTENT = b"a commit"
PATH = "job/log/00001"
WRITES: dict[str, Callable[[LocalObjectStore, Path], None]] = {
    "put": lambda store, _: store.put(PATH, CONTENT),
    "create": lambda store, _: store.create(PATH, CONTENT),
    "upload": lambda store, source: store.upload(source, PATH),
    "upload of a link": lambda store, source: store.upload(source, PATH, immutable=True),
    "copy": lambda store, _: store.copy("other", PATH),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def store(tmp_path: Path, source: Path) -> LocalObjectStore:
    store = LocalObjectStore(tmp_path / "store")
    store.upload(source, "other")
    return store


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("folder_is_there", [False, True])
def test_an_acknowledged_object_is_there_after_a_power_loss(
    tmp_path: Path,
    store: LocalObjectStore,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[LocalObjectStore, Path], None],
    *,
    folder_is_there: bool,
) -> None:
    disk = SyncedDisk(monkeypatch)
    if folder_is_there:
        store.put("job/log/00000", b"")
    write(store, source)
    assert disk.after_power_loss(tmp_path / "store", PATH) == CONTENT


def test_the_root_that_is_created_with_the_first_object_survives_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SyncedDisk(monkeypatch)
    LocalObjectStore(tmp_path / "a" / "new" / "root").create(PATH, CONTENT)
    assert disk.after_power_loss(tmp_path, f"a/new/root/{PATH}") == CONTENT


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_object_that_cannot_be_synced_is_not_there(
    store: LocalObjectStore,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[LocalObjectStore, Path], None],
) -> None:
    store.put("job/log/00000", b"")

    def failing(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreUnavailableError):
        write(store, source)
    assert [info.path for info in store.list("")] == ["job/log/00000", "other"]
    assert not list((source.parent / "store").rglob(".tmp-*"))
