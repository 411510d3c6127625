"""A driver takes diagnostics beside its batches, and reports each one, whatever happens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.messages import DiagnosticCommand, DiagnosticReport, Failure
from keyscale.jobs.runtime.diagnostics import diagnostic_runner as of_drivers
from keyscale.jobs.runtime.diagnostics.diagnostic_runner import DiagnosticRunner, shortened
from keyscale.jobs.runtime.diagnostics.readings import read_within
from keyscale.jobs.runtime.errors import ControlUnreachableError, UnknownOperatorError
from keyscale.vocabulary import DiagnosticKind
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DUMP = DiagnosticCommand(id="d1", kind=DiagnosticKind.THREAD_DUMP)


class Desk:
    """A control plane that takes reports, and may be away."""

    def __init__(self) -> None:
        self.reports: list[DiagnosticReport] = []
        self.is_away = False
        self.tries = 0

    def report_diagnostic(self, report: DiagnosticReport) -> None:
        self.tries += 1
        if self.is_away:
            raise ControlUnreachableError("no answer")
        self.reports.append(report)

    def wait(self) -> DiagnosticReport:
        wait_until(lambda: self.reports, what="the report")
        return self.reports[-1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def take(desk: Desk) -> Iterator[Callable[[Callable[[], Mapping[str, Callable[[], str]]]], DiagnosticRunner]]:
    running: list[DiagnosticRunner] = []

    def started(means: Callable[[], Mapping[str, Callable[[], str]]]) -> DiagnosticRunner:
        found = DiagnosticRunner(
            cast("Any", desk),
            {DiagnosticKind.THREAD_DUMP: lambda _: means()},
            lambda text: text.replace("sesame", "*****"),
        )
        running.append(found)
        found.start()
        found.request([DUMP])
        return found

    yield started
    for each in running:
        each.close()
        each._thread.join()


def test_a_diagnostic_reports_the_text_of_each_part_without_secrets(
    desk: Desk, take: Callable[..., DiagnosticRunner]
) -> None:
    take(lambda: {"driver": lambda: "open sesame", "worker 7": lambda: ""})
    report = desk.wait()
    assert {part.name: part.text for part in report.parts} == {"driver": "open *****", "worker 7": "(empty)"}
    assert report.failure is None


def test_a_part_that_hangs_or_fails_leaves_the_other_parts(
    desk: Desk, take: Callable[..., DiagnosticRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_drivers, "ANSWER_SECONDS", 0.2)
    never = threading.Event()
    take(lambda: {"JVM": lambda: str(never.wait()), "driver": lambda: "stacks", "worker": lambda: str(1 // 0)})
    report = desk.wait()
    never.set()
    assert [(part.name, part.text) for part in report.parts] == [
        ("JVM", "(no answer within 0.2 s)"),
        ("driver", "stacks"),
        ("worker", "(not read: ZeroDivisionError: integer division or modulo by zero)"),
    ]


def test_a_diagnostic_that_cannot_be_taken_is_reported_as_failed(
    desk: Desk, take: Callable[..., DiagnosticRunner]
) -> None:
    def means() -> Mapping[str, Callable[[], str]]:
        raise OSError("no such sesame")

    take(means)
    failure = desk.wait().failure
    assert failure is not None
    assert (failure.code, failure.message) == ("DRIVER_DIAGNOSTIC_FAILED", "OSError: no such *****")


def test_a_repeated_request_is_taken_once_and_a_lost_report_is_sent_again(
    desk: Desk, take: Callable[..., DiagnosticRunner]
) -> None:
    taken: list[str] = []

    def means() -> Mapping[str, Callable[[], str]]:
        taken.append("once")
        return {"driver": lambda: "stacks"}

    desk.is_away = True
    running = take(means)
    wait_until(lambda: desk.tries == 1 and not running._busy, what="the lost report")
    desk.is_away = False
    running.request([DUMP])
    assert desk.wait().parts[0].text == "stacks"
    assert taken == ["once"]


def test_a_long_text_loses_its_end_so_that_the_report_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_drivers, "DIAGNOSTIC_CHARACTERS_MAX", 1000)
    found = shortened({"a" * 300: "1" * 5000, "b": "2" * 100})
    assert found[0].text.startswith("111")
    assert found[0].text.endswith("1\n(the rest is left out)\n")
    assert found[1].text == "2" * 100
    assert sum(len(part.name) + len(part.text) for part in found) <= 1000


def test_texts_are_read_at_the_same_time() -> None:
    both = threading.Barrier(2)
    reads = {name: lambda name=name: f"{name}{both.wait(10) * 0}" for name in ("a", "b")}
    assert read_within(10, reads) == {"a": "a0", "b": "b0"}


def test_a_diagnostic_that_the_job_cannot_answer_says_why_and_what_helps(
    desk: Desk, take: Callable[..., DiagnosticRunner]
) -> None:
    def means() -> Mapping[str, Callable[[], str]]:
        raise UnknownOperatorError("the job has no operator sesame")

    take(means)
    report = desk.wait()
    assert (report.diagnostic_id, report.parts) == ("d1", [])
    assert report.failure == Failure(
        code=UnknownOperatorError.code,
        message="the job has no operator *****",
        advice=UnknownOperatorError("").advice,
    )


def test_the_last_reports_are_kept_to_be_sent_again(desk: Desk) -> None:
    taken: list[str] = []
    runner = DiagnosticRunner(
        cast("Any", desk), {DiagnosticKind.THREAD_DUMP: lambda command: taken.append(command.id) or {}}
    )
    for name in ("a", "b", "c", "d", "e", "b", "a"):
        runner._requests.put(DUMP.model_copy(update={"id": name}))
    runner._requests.put(None)
    runner._run()
    assert taken == ["a", "b", "c", "d", "e", "a"]
    assert [report.diagnostic_id for report in desk.reports] == ["a", "b", "c", "d", "e", "b", "a"]
