"""Runs one step of a consolidation, to be killed at a sync point.

Its arguments are an action, and a directory or a pickle.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from keyscale.identifiers import CheckpointId
from keyscale.state.consolidation.consolidator import consolidate
from keyscale.state.subtask.store import open_subtask
from tests.support.state.state_job import ALWAYS


def main(action: str, argument: str) -> None:
    if action == "consolidate":
        consolidate(Path(argument))
        return
    spec, version, plan, local_root, store = pickle.loads(Path(argument).read_bytes())  # noqa: S301 (the test's own)
    with open_subtask(spec, version, plan, local_root, store) as subtask:
        if action == "snapshot":
            subtask.snapshot(CheckpointId(100), ALWAYS)
