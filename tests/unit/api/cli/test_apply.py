"""The steps of a plan are carried out one after another, each once the one before has ended."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli import apply as command
from keyscale.api.cli.apply import _carry_out_all, _Manner
from keyscale.client.declarations.job_plan import JobPlan, Step
from keyscale.client.errors import OperationFailedError, WaitTimeoutError
from keyscale.vocabulary import OperationStatus
from tests.support.control_plane.command_line import run

if TYPE_CHECKING:
    from pathlib import Path


class Client:
    """A control plane that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.failure: Exception | None = None
        self.jobs = SimpleNamespace(
            create=lambda **given: self._do("create", given["name"]),
            update=lambda name, revision, *, spec, message: self._do("update", name, revision, spec, message),
            start=lambda name: self._do("start", name),
            stop=lambda name: self._do("stop", name),
            delete=lambda name, *, keep_objects: self._do("delete", name, keep_objects),
        )
        self.operations = SimpleNamespace(wait=self._wait)

    def _do(self, what: str, name: str, *more: Any) -> Any:
        self.asked.append((what, name, *more))
        return SimpleNamespace(id=f"{what} {name}", status=OperationStatus.IN_PROGRESS)

    def _wait(self, operation: str, timeout_s: float | None) -> None:
        self.asked.append(("wait", operation, timeout_s))
        if self.failure is not None:
            raise self.failure


def plan(*steps: Step, name: str = "flights") -> JobPlan:
    given: Any = SimpleNamespace(given={}, labels={})
    present: Any = SimpleNamespace(revision=7)
    spec: Any = SimpleNamespace(artifact_id="a", libraries=[], given=dict)
    return JobPlan(name, steps, declaration=given, present=present, spec=spec)


def carry_out(client: Client, *plans: JobPlan, wait: bool = False) -> int:
    return _carry_out_all(client, plans, _Manner("why", keep_objects=False, wait=wait, timeout_s=9.0))


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize(
    ("steps", "done"),
    [
        ((Step.CREATE, Step.START), [("create", "flights"), ("start", "flights")]),
        ((Step.UPDATE, Step.START), [("update", "flights", 7, {}, "why"), ("start", "flights")]),
        ((Step.STOP, Step.UPDATE), [("stop", "flights"), ("update", "flights", 7, {}, "why")]),
        ((Step.STOP, Step.DELETE), [("stop", "flights"), ("delete", "flights", False)]),
    ],
)
def test_only_the_last_operation_of_a_plan_need_not_be_waited_for(
    steps: tuple[Step, ...], done: list[Any], *, wait: bool
) -> None:
    client = Client()
    assert carry_out(client, plan(*steps), wait=wait) == 0
    expected = []
    for number, each in enumerate(done, 1):
        expected.append(each)
        if each[0] in {"update", "start", "stop"} and (wait or number < len(done)):
            expected.append(("wait", f"{each[0]} flights", 9.0))
    assert client.asked == expected


@pytest.mark.parametrize(
    ("failure", "exit_code"), [(OperationFailedError("no"), 1), (WaitTimeoutError("late"), command.TIMEOUT_EXIT_CODE)]
)
def test_a_job_that_fails_keeps_its_later_steps_back_and_no_other_job(failure: Exception, exit_code: int) -> None:
    client = Client()
    client.failure = failure
    assert carry_out(client, plan(Step.STOP, Step.DELETE), plan(Step.CREATE, name="other")) == exit_code
    assert client.asked == [("stop", "flights"), ("wait", "stop flights", 9.0), ("create", "other")]


@pytest.mark.parametrize(("options", "keeps_objects"), [((), True), (("--delete-objects",), False)])
def test_a_prune_does_what_its_plan_shows(
    options: tuple[str, ...], keeps_objects: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client: Any = Client()
    on = SimpleNamespace(desired="RUNNING", state="RUNNING")
    jobs = [SimpleNamespace(name=f"of-{team}", labels={"team": team}, status=on) for team in ("a", "b")]
    client.jobs.list, client.artifacts = (lambda: jobs), SimpleNamespace(list=list)
    monkeypatch.setattr(command.Session, "control_plane", lambda _: nullcontext(client))
    monkeypatch.setattr(command, "read_declarations", lambda _: [])
    answer = run("apply", "-f", str(tmp_path), "--prune", "-l", "team=a", "--yes", "--timeout", "9", *options)
    assert (answer.exit_code, answer.stdout) == (0, "of-a: stop, delete\n"), answer.stderr
    assert client.asked == [("stop", "of-a"), ("wait", "stop of-a", 9.0), ("delete", "of-a", keeps_objects)]
