"""Assignments as a control plane gives them to drivers, for tests that start drivers by themselves."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.messages import Assignment
from keyscale.jobs.protocol.specification import JobSpec

if TYPE_CHECKING:
    from pathlib import Path


def assignment(**fields: Any) -> Assignment:
    """An assignment with given fields; settings of the specification are among them, as if they were its own."""
    settings = {name: fields.pop(name) for name in JobSpec.model_fields.keys() & fields.keys() - {"libraries"}}
    return Assignment(spec=JobSpec(**{"artifact_id": "artifact", **settings}), **fields)


def assignment_of(script: Path, home: Path, attempt: int, parallelism: int, **changes: Any) -> Assignment:
    """An attempt of the job that a script makes: input, output and object store are folders of `home`.

    Args:
        script: The job's artifact; its name without the ending is the job's.
        home: The test's folder.
        attempt: Its number; checkpoints are numbered from a hundred times it.
        parallelism: Subtasks.
        changes: Fields of Assignment and settings that differ; `parameters` are in addition to input and output.
    """
    name = script.stem
    folders = {"input": str(home / "in"), "output": str(home / "out")}
    fields = {
        "job_id": name,
        "job_name": name,
        "max_parallelism": 16,
        "artifact_filename": script.name,
        "artifact_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "store_url": (home / "store").as_uri(),
        "next_checkpoint_id": attempt * 100,
        **changes,
        "parameters": {**folders, **changes.get("parameters", {})},
    }
    return assignment(attempt=attempt, parallelism=parallelism, **fields)
