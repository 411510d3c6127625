"""Programs that are loaded in a process of their own, with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.errors import PlanTimeoutError
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.launching.launcher import Launcher
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.api.settings import Settings
from keyscale.jobs.protocol.program import ProgramQuestion

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

SCRIPT = """
import os, pyarrow as pa
from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

class Totals(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))
    def process_element(self, row, context):
        yield row

env = StreamEnvironment.current()
seen = ["secret" for name in os.environ if name.startswith("KEYSCALE_JOB_SECRET_")]
hidden = [name for name in sorted(os.environ) if name.startswith(("AWS_", "KEYSCALE_")) and "JOB_SECRET" not in name]
rows = env.stream(env.spark.readStream.format("rate").load().selectExpr("value AS user"))
totals = rows.key_by("user").process(Totals(), output={"user": "bigint"})
totals.uid("-".join(["x", *seen, *hidden, *env.parameters])).sink_to(FileSink("/nowhere")).uid("out")
env.execute()
raise RuntimeError("nothing of the script runs after it has declared its job")
"""


def loading(home: Path, **settings: object) -> ProgramLoading:
    secrets = JobSecrets({"KEYSCALE_JOB_SECRET_MINE": "a", "KEYSCALE_JOB_SECRET_OTHER": "b"})
    made = Settings(home=home, store_url="file:///none", job_secrets=secrets, **settings)  # type: ignore[arg-type]
    return ProgramLoading(made, Launcher(made))


def test_a_program_shows_its_declarations_and_sees_only_its_own_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-store")
    question = ProgramQuestion("program.py", {"given": {"secret": "MINE"}}, 128, 2)
    answer = loading(tmp_path).load(
        question,
        [SCRIPT.encode()],
        spark_conf={},
        secrets=["MINE"],
        holder=None,
    )
    assert answer.failure is None
    assert answer.declaration is not None
    [operator] = answer.declaration.operators
    assert operator.uid == "x-secret-KEYSCALE_REVEALED_NAMES-KEYSCALE_WORK_DIR-given"
    assert operator.declaration.schema is not None
    assert [state.name for state in operator.declaration.schema.states] == ["total"]
    assert [(sink.uid, sink.kind) for sink in answer.declaration.sinks] == [("out", "FileSink")]
    assert [*(tmp_path / "runs" / "plans").iterdir()] == []


def test_a_program_that_takes_too_long_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    question = ProgramQuestion("program.py", {}, 128, 1)
    with pytest.raises(PlanTimeoutError):
        loading(tmp_path, plan_timeout_ms=1000).load(
            question,
            [b"while True: pass\n"],
            spark_conf={},
            secrets=[],
            holder=None,
        )
    assert [*(tmp_path / "runs" / "plans").iterdir()] == []
