from __future__ import annotations

import pytest

from tests.contract.keyed_store import open_store


@pytest.fixture(params=["heap", "rocksdb"])
def store(request, tmp_path):
    with open_store(request.param, tmp_path / "store") as opened:
        yield opened


@pytest.fixture(params=["same batch", "next batch"])
def step(request, store):
    """Called between writes and reads: does nothing, or ends the batch."""
    return store.commit if request.param == "next batch" else lambda: None
