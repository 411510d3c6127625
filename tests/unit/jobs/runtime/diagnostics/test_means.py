"""Each kind of diagnostic is read as its command says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.jobs.protocol.messages import DiagnosticCommand
from keyscale.jobs.runtime.diagnostics import means as module
from keyscale.vocabulary import DiagnosticKind


@pytest.mark.parametrize("kind", list(DiagnosticKind))
def test_each_kind_of_diagnostic_is_read_as_its_command_says(
    kind: DiagnosticKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*given: Any, **named: Any) -> Any:
        return ("sample", given, named)

    monkeypatch.setattr(module, "live_executors", lambda spark: f"executors of {spark}")
    monkeypatch.setattr(module, "thread_dump", lambda *given: ("dump", *given))
    monkeypatch.setattr(module, "executor_logs", lambda *given: ("logs", *given))
    monkeypatch.setattr(
        module, "profile", lambda workers, seconds, executors: ("profile", workers, seconds, executors())
    )
    found = module.means(cast("Any", "spark"), "mine", cast("Any", SimpleNamespace(begin=begin)))
    command = DiagnosticCommand(id="d1", kind=kind, duration_ms=1500, operator_uid="count", rows=7, with_values=True)
    expected: dict[DiagnosticKind, Any] = {
        DiagnosticKind.THREAD_DUMP: ("dump", "spark", "mine"),
        DiagnosticKind.PROFILE: ("profile", "mine", 1.5, "executors of spark"),
        DiagnosticKind.EXECUTOR_LOGS: ("logs", "spark"),
        DiagnosticKind.SAMPLE: ("sample", ("d1", "count"), {"rows": 7, "with_values": True, "seconds": 1.5}),
    }
    assert found[kind](command) == expected[kind]
