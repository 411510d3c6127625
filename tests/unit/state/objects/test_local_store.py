"""Pipes and links that a job puts into its directory of a local store: they mislead nobody and hold nobody up."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path


def test_only_plain_files_are_objects(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    store.put("job/real", b"content")
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the control plane")
    job = tmp_path / "store" / "job"
    os.mkfifo(job / "pipe")
    (job / "link").symlink_to(secret)
    (job / "nowhere").symlink_to(tmp_path / "none")
    (job / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(job / "socket"))
        for name in ("pipe", "link", "nowhere", "folder", "socket"):
            with pytest.raises(ObjectNotFoundError):
                store.get(f"job/{name}")
            with pytest.raises(ObjectNotFoundError):
                store.download(f"job/{name}", tmp_path / "target")
            assert store.head(f"job/{name}") is None
    listed = [info.path for info in store.list("job/")]
    assert listed == [f"job/{name}" for name in ("link", "nowhere", "pipe", "real", "socket")]
    store.delete(listed)
    assert list(store.list("job/")) == []
    assert secret.read_bytes() == b"of the control plane"
