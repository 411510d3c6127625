"""A program is loaded with the settings of its specification, and its failure shows no secret."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.job_secrets import JobSecrets
from keyscale.api.jobs import program_loads
from keyscale.db.models import Artifact
from keyscale.jobs.protocol.program import ProgramAnswer, ProgramQuestion
from keyscale.jobs.protocol.specification import JobSpec

SPEC = JobSpec.model_validate(
    {
        "artifact_id": "a",
        "libraries": ["f" * 32],
        "parallelism": 3,
        "max_parallelism": 16,
        "parameters": {"p": "q"},
        "spark_conf": {"spark.x": "1"},
        "secrets": ["MINE"],
    }
)


@pytest.mark.parametrize("holder", [None, "the job"])
def test_a_program_is_loaded_with_the_settings_of_its_job(monkeypatch: pytest.MonkeyPatch, holder: Any) -> None:
    loaded: list[Any] = []
    answer = ProgramAnswer(failure={})
    monkeypatch.setattr(program_loads, "libraries_of", lambda _, names: f"brought {names}")
    monkeypatch.setattr(program_loads.artifacts, "read_bytes", lambda _, sha256: iter([sha256.encode(), b"!"]))

    def load(question: ProgramQuestion, content: Any, **settings: Any) -> ProgramAnswer:
        loaded.append((question, b"".join(content), settings))
        return answer

    context: Any = SimpleNamespace(reads=lambda: nullcontext(None), programs=SimpleNamespace(load=load))
    program = Artifact(filename="job.py", sha256="5f")
    assert program_loads.load_program(context, program, SPEC, max_parallelism=64, holder=holder) is answer
    [(question, content, settings)] = loaded
    assert question == ProgramQuestion("job.py", {"p": "q"}, max_parallelism=64, parallelism=3)
    assert content == b"5f!"
    assert settings == {
        "spark_conf": {"spark.x": "1"},
        "secrets": ["MINE"],
        "brought": f"brought {SPEC.libraries}",
        "holder": holder,
    }


def test_the_failure_of_a_load_shows_none_of_its_secrets() -> None:
    secrets = JobSecrets({"KEYSCALE_JOB_SECRET_MINE": "of-the-orders", "KEYSCALE_JOB_SECRET_OTHER": "something-else"})
    context: Any = SimpleNamespace(settings=SimpleNamespace(job_secrets=secrets))
    told = {"code": "JOB_SCRIPT_FAILED", "message": "of-the-orders, something-else", "traceback": "in of-the-orders"}
    shown = program_loads.failure_of(context, SPEC, ProgramAnswer(failure=told))
    assert shown is not None
    assert (shown.code, shown.message, shown.traceback) == (
        "JOB_SCRIPT_FAILED", "*****, something-else", "in *****"
    )  # fmt: skip
    assert program_loads.failure_of(context, SPEC, ProgramAnswer(failure=None)) is None
