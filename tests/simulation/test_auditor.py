"""The auditor tells a late write of the store from an entry that must not be."""

from __future__ import annotations

import pytest

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.state.documents.checked_document import encode_document
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import FORMAT_VERSION, KIND, _Record
from tests.simulation.auditor import Auditor
from tests.simulation.object_store import StoreModel
from tests.simulation.trace import Trace
from tests.simulation.world import World

PATH = Layout(JobId("job")).log_entry(1)


@pytest.mark.parametrize(("again", "findings"), [(3, 0), (4, 1)])
def test_an_entry_that_comes_back_after_the_clean_up_is_no_finding_if_it_is_the_same(again: int, findings: int) -> None:
    world = World(0, Trace())
    store = StoreModel(world)
    auditor = Auditor(world, store)
    store.create(PATH, planned(3))
    store.delete(PATH)
    store.create(PATH, planned(again))
    assert len(auditor.findings) == findings


def planned(batch_id: int) -> bytes:
    return encode_document(KIND, FORMAT_VERSION, _Record(1, "nonce", BatchPlanned(Attempt(1), BatchId(batch_id), {})))
