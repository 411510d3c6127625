"""The steps of a plan are carried out one after another, each once the one before has ended."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from keyscale.api.cli import apply as command
from keyscale.api.cli.apply import _carry_out_all, _Manner
from keyscale.api.cli.session import Session
from keyscale.client.declarations.job_plan import JobPlan, Step
from keyscale.client.declarations.job_text import MASK
from keyscale.client.errors import OperationFailedError, WaitTimeoutError
from keyscale.jobs.protocol.specification import JobSpec
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
    monkeypatch.setattr(Session, "control_plane", lambda _: nullcontext(client))
    monkeypatch.setattr(command, "read_declarations", lambda _: [])
    answer = run("apply", "-f", str(tmp_path), "--prune", "-l", "team=a", "--yes", "--timeout", "9", *options)
    assert (answer.exit_code, answer.stdout) == (0, "of-a: stop, delete\n"), answer.stderr
    assert client.asked == [("stop", "of-a"), ("wait", "stop of-a", 9.0), ("delete", "of-a", keeps_objects)]


PROGRAM = b"print(1)\n"
FIRST_ID, SECOND_ID, JAR_ID = "a" * 32, "b" * 32, "c" * 32


def artifact(artifact_id: str, filename: str, content: bytes) -> SimpleNamespace:
    return SimpleNamespace(id=artifact_id, filename=filename, sha256=hashlib.sha256(content).hexdigest())


def job(name: str, state: str, spec: dict[str, Any], *, desired: str | None = None, **labels: str) -> SimpleNamespace:
    status = SimpleNamespace(desired=desired or ("RUNNING" if state == "RUNNING" else "STOPPED"), state=state)
    settings = JobSpec.model_validate({"artifact_id": FIRST_ID, **spec})
    return SimpleNamespace(name=name, revision=7, labels=labels, status=status, spec=settings)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Returns a control plane with an artifact, and the list of its jobs."""
    client: Any = Client()
    present: list[Any] = []
    contents = {FIRST_ID: PROGRAM, SECOND_ID: b"older", JAR_ID: b"jar"}
    stored = [artifact(FIRST_ID, "program.py", PROGRAM), artifact(SECOND_ID, "lib/program.py", b"older")]
    stored.append(artifact(JAR_ID, "sums.jar", b"jar"))

    def upload(path: Path) -> SimpleNamespace:
        client.asked.append(("upload", path.name))
        return artifact(f"{path.name:f>32}", path.name, path.read_bytes())

    def create(**given: Any) -> None:
        client.asked.append(("create", given["name"], given["labels"], given["spec"].given()["artifact_id"]))
        client.asked.append(("spec", given["spec"].model_fields_set, given["spec"].libraries))

    client.jobs.list, client.jobs.create = (lambda: present), create
    client.jobs.get = lambda name: next(each for each in present if each.name == name)
    client.artifacts = SimpleNamespace(list=lambda: stored, upload=upload, content=contents.__getitem__)
    monkeypatch.setattr(Session, "control_plane", lambda _: nullcontext(client))
    return client, present


def test_a_plan_is_shown_then_new_files_are_uploaded_once_and_the_jobs_get_their_artifacts(
    jobs: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    client, present = jobs
    present.append(job("flights", "RUNNING", {"parallelism": 2, "parameters": {"in": "/a"}}, team="a"))
    present.append(job("steady", "RUNNING", {"parallelism": 2}))
    present.append(job("fixed", "RUNNING", {"max_parallelism": 64}))
    (tmp_path / "program.py").write_bytes(PROGRAM)
    (tmp_path / "better.py").write_text("print(2)\n")
    (tmp_path / "flights.yaml").write_text(
        "name: flights\nlabels: {team: a}\nprogram: better.py\n"
        "spec: {parallelism: 2, checkpoints: {interval_ms: 5000}}\n"
    )
    (tmp_path / "new.yml").write_text(
        f"name: new\nlabels: {{team: b}}\nstate: RUNNING\nprogram: better.py\nlibraries: [{JAR_ID}, program.py]\n"
        "---\nname: steady\nprogram: program.py\nspec: {parallelism: 2}\n"
    )
    shown = (
        "flights: change\n"
        f"    artifact_id: {FIRST_ID} -> file:better.py  (RESTART)\n"
        "    checkpoints.interval_ms: 10000 -> 5000  (AT_ONCE)\n"
        "    parameters.in: /a -> none  (RESTART)\n"
        "new: create, start\n"
        "steady: unchanged\n"
    )
    planned = run("apply", "-f", str(tmp_path), "--dry-run")
    assert (planned.exit_code, client.asked) == (command.CHANGES_EXIT_CODE, []), planned.stderr
    assert sorted(planned.stdout.splitlines()) == sorted(shown.splitlines())
    (entry,) = [
        each
        for each in json.loads(run("apply", "-f", str(tmp_path), "--dry-run", "--json").stdout)
        if each["steps"] == ["UPDATE"]
    ]
    assert (entry["job"], entry["refusal"]) == ("flights", None)
    assert {"path": "parameters.in", "before": "/a", "after": None, "change_class": "RESTART"} in entry["differences"]
    asked_at_a_terminal = run("apply", "-f", str(tmp_path))
    assert (asked_at_a_terminal.exit_code, client.asked) == (2, []), "it has no terminal to ask at"
    applied = run("apply", "-f", str(tmp_path), "--yes", "--message", "why")
    assert (applied.exit_code, applied.stdout) == (0, planned.stdout), applied.stderr
    assert applied.stderr.splitlines() == ["flights: changed", "new: created", "new: starting"]
    new_id = f"{'better.py':f>32}"
    whole = JobSpec.model_validate({"artifact_id": new_id, "checkpoints": {"interval_ms": 5000}}).given()["checkpoints"]
    patch = {"artifact_id": new_id, "parameters": {"in": None}, "checkpoints": whole}
    assert client.asked == [
        ("upload", "better.py"),
        ("update", "flights", 7, patch, "why"),
        ("create", "new", {"team": "b"}, new_id),
        ("spec", {"artifact_id", "libraries"}, [JAR_ID, FIRST_ID]),
        ("start", "new"),
    ]


def test_nothing_is_done_if_one_job_is_refused_or_all_are_as_declared(
    jobs: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    client, present = jobs
    present.append(job("fixed", "RUNNING", {"max_parallelism": 64}, team="a"))
    (tmp_path / "program.py").write_bytes(PROGRAM)
    declared, other = tmp_path / "fixed.yaml", tmp_path / "new.yaml"
    other.write_text("name: new\nprogram: program.py\n")
    declared.write_text("name: fixed\nlabels: {team: a}\nprogram: program.py\nspec: {max_parallelism: 32}\n")
    refused = run("apply", "-f", str(declared), "-f", str(other), "--yes")
    assert (refused.exit_code, client.asked) == (1, [])
    assert refused.stdout.splitlines() == [
        "fixed: cannot be applied: max_parallelism is fixed: the job has 64, not 32",
        "    max_parallelism: 64 -> 32  (FIXED)",
        "new: create",
    ]
    declared.write_text("name: fixed\nprogram: program.py\n")
    refused = run("apply", "-f", str(declared))
    assert (refused.exit_code, "labels are fixed: the job has team=a, not none" in refused.stdout) == (1, True)
    declared.write_text("name: fixed\nlabels: {team: a}\nprogram: program.py\n")
    for options in ((), ("--dry-run",), ("--yes", "--wait")):
        same = run("apply", "-f", str(declared), *options)
        assert (same.exit_code, same.stdout, client.asked) == (0, "fixed: unchanged\n", [])


@pytest.mark.parametrize("options", [("--prune",), ("-l", "team=a")])
def test_a_prune_needs_a_selector(options: tuple[str, ...], jobs: tuple[Any, list[Any]], tmp_path: Path) -> None:
    answer = run("apply", "-f", str(tmp_path), "--yes", *options)
    assert (answer.exit_code, jobs[0].asked) == (2, [])
    assert "together" in answer.stderr


def test_jobs_are_exported_as_files_that_declare_them_as_they_are(jobs: tuple[Any, list[Any]], tmp_path: Path) -> None:
    client, present = jobs
    usual = {"parallelism": 2, "parameters": {"password": {"secret": "KEY"}}}
    present.append(job("flights", "SLEEPING", usual | {"libraries": [SECOND_ID, "package:kafka"]}, desired="RUNNING"))
    present.append(job("delays", "FAILED", {"hash_id": "java", "parameters": {"in": "ä"}}, team="a"))
    printed = run("export", "flights", "delays")
    assert printed.exit_code == 0, printed.stderr
    assert "ä" in printed.stdout
    assert list(yaml.safe_load_all(printed.stdout)) == [
        {
            "name": "flights",
            "state": "RUNNING",
            "program": "program.py",
            "libraries": ["bbbbbbbb/program.py", "package:kafka"],
            "spec": {
                "parallelism": 2,
                "parameters": usual["parameters"],
                "secrets": ["KEY"],
                "max_parallelism": 128,
                "hash_id": "spark",
            },
        },
        {
            "name": "delays",
            "labels": {"team": "a"},
            "state": "STOPPED",
            "program": "program.py",
            "spec": {"max_parallelism": 128, "parameters": {"in": "ä"}, "hash_id": "java"},
        },
    ]
    target = tmp_path / "files"
    written = run("export", "flights", "delays", "-o", str(target))
    names = ["program.py", "bbbbbbbb/program.py", "flights.yaml", "delays.yaml"]
    assert written.stdout.splitlines() == [str(target / name) for name in names], written.stderr
    assert [(target / name).read_bytes() for name in names[:2]] == [PROGRAM, b"older"]
    assert "---\n".join((target / name).read_text() for name in names[2:]) == printed.stdout
    again = run("apply", "-f", str(target), "--dry-run")
    assert (again.exit_code, again.stdout) == (0, "delays: unchanged\nflights: unchanged\n"), again.stderr
    assert client.asked == []


def test_a_job_with_a_masked_parameter_is_not_exported(jobs: tuple[Any, list[Any]], tmp_path: Path) -> None:
    present = jobs[1]
    present.append(job("flights", "RUNNING", {"parameters": {"url": f"postgres://ann:{MASK}@host"}}))
    answer = run("export", "flights", "-o", str(tmp_path / "none"))
    assert (answer.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "flights: the parameter url looks like a secret" in answer.stderr


@pytest.mark.parametrize("status", [OperationStatus.PENDING_APPROVAL, OperationStatus.IN_PROGRESS])
def test_a_change_that_waits_for_an_approval_names_the_command_of_the_other_user(
    capsys: pytest.CaptureFixture[str], status: OperationStatus
) -> None:
    client = Client()
    client.jobs.update = lambda *_, **__: SimpleNamespace(id="c", status=status)
    assert carry_out(client, plan(Step.UPDATE)) == 0
    told = capsys.readouterr().err.splitlines()
    waits = "flights: The change waits for another user: `./keyscale operations approve c`"
    assert told == [*([waits] if status is OperationStatus.PENDING_APPROVAL else []), "flights: changed"]


@pytest.mark.parametrize(
    ("failures", "exit_code"),
    [
        ([WaitTimeoutError("late"), OperationFailedError("no")], 1),
        ([OperationFailedError("no"), WaitTimeoutError("late")], 1),
        ([WaitTimeoutError("late"), WaitTimeoutError("late")], command.TIMEOUT_EXIT_CODE),
        ([WaitTimeoutError("late"), None], command.TIMEOUT_EXIT_CODE),
    ],
)
def test_several_jobs_are_late_only_if_no_job_has_failed(failures: list[Exception | None], exit_code: int) -> None:
    client, left = Client(), list(failures)

    def wait(*_: Any) -> None:
        if (failure := left.pop(0)) is not None:
            raise failure

    client.operations.wait = wait
    assert carry_out(client, plan(Step.START), plan(Step.START, name="other"), wait=True) == exit_code
    assert left == []
