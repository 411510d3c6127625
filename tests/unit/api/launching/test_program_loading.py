"""Loaders of hostile programs: nothing of them stays, and the control plane does not grow. Python as the loader."""

from __future__ import annotations

import os
import sys
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from keyscale.api.errors import JobUserError, PlanTimeoutError, ProgramUnloadableError, TooManyInFlightError
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.launching import program_loading
from keyscale.api.launching.isolation import Isolation, JobUser, UserHolder
from keyscale.api.launching.launcher import Launcher
from keyscale.api.launching.program_loading import REMEMBERED_MAX, ProgramLoading
from keyscale.api.launching.user_register import UserRegister
from keyscale.api.settings import Settings
from keyscale.jobs.protocol.program import ANSWER_FILE, QUESTION_FILE, ProgramAnswer, ProgramQuestion
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST_USER = 59_980
JOB = UserHolder("j", 7, ())
FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(613)"], {environment})
    os._exit(0)
os.wait()
time.sleep({stay_s})
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Loads a program with plain Python as the loader."""

    def run(
        program: str,
        *,
        plan_timeout_ms: int = 120_000,
        isolation: Isolation | None = None,
        holder: UserHolder | None = JOB,
    ) -> None:
        monkeypatch.setattr(program_loading, "loader_command", lambda *_: [sys.executable, "-c", program])
        settings = Settings(home=tmp_path, store_url="file:///none", plan_timeout_ms=plan_timeout_ms)
        loading = ProgramLoading(settings, Launcher(settings, isolation))
        question = ProgramQuestion("program.py", {}, 128, 1)
        loading.load(question, [], spark_conf={}, secrets=[], holder=holder)

    return run


def left_over() -> list[psutil.Process]:
    return [
        process for process in psutil.process_iter(["cmdline"]) if "time.sleep(613)" in str(process.info["cmdline"])
    ]


def test_a_loader_that_prints_without_end_does_not_fill_the_control_planes_memory(load: Callable[..., None]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProgramUnloadableError, match=r"its last line: x{500}") as caught:
            load("import sys\nfor _ in range(50): sys.stdout.write(('x' * 1000 + '\\n') * 1000)")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(caught.value.detail) < 3000
    assert peak_bytes < 10 << 20


STATE = '{"name": "s", "kind": "value", "formats": %s}'
DECLARED = '{"declaration": {"operators": [{"uid": "o", "declaration": {"schema": {"key": [], "states": [%s]}}}], %s}}'
ENDS = '"sources": [], "sinks": []'


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        '{"failure": {"code": 1}}',
        '{"declaration": 1}',
        "[",
        DECLARED % (STATE % "[]", ENDS),
        DECLARED % (STATE % '[{"type": "none"}]', ENDS),
        DECLARED % (STATE % '[{"type": ["decimal", "x"]}]', ENDS),
    ],
    ids=["empty", "failure", "number", "cut", "no-format", "no-type", "no-decimal"],
)
def test_an_answer_that_the_program_has_written_itself_is_no_declaration(
    load: Callable[..., None], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    def start(directory: Path, *_: Any) -> Any:
        (directory / "work" / "declaration.json").write_text(answer)
        return SimpleNamespace(pid=0, wait=lambda *_: 0, kill=lambda: None)

    monkeypatch.setattr(program_loading, "start_supervised", start)
    with pytest.raises(ProgramUnloadableError):
        load("")


@pytest.mark.parametrize("stay_s", [0, pytest.param(600, marks=pytest.mark.real)])  # 600 waits for a time limit
def test_processes_that_a_program_leaves_in_a_session_of_their_own_are_killed(
    load: Callable[..., None], stay_s: int
) -> None:
    ended = PlanTimeoutError if stay_s else ProgramUnloadableError
    with pytest.raises(ended):
        load(FORK.format(environment="os.environ", stay_s=stay_s), plan_timeout_ms=5_000 if stay_s else 120_000)
    wait_until(lambda: not left_over())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
def test_with_a_user_of_their_own_they_are_killed_whatever_their_environment(
    load: Callable[..., None], tmp_path: Path
) -> None:
    with pytest.raises(ProgramUnloadableError):
        load(
            FORK.format(environment="{}", stay_s=0),
            isolation=Isolation(FIRST_USER, 10, register=UserRegister(tmp_path / "users")),
        )
    wait_until(lambda: not left_over())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
def test_a_load_without_a_job_has_a_user_that_no_job_has_and_gives_it_back(
    load: Callable[..., None], tmp_path: Path
) -> None:
    isolation = Isolation(FIRST_USER, 2, register=UserRegister(tmp_path / "users"))
    of_job = isolation.uid(UserHolder("j", 0, (tmp_path,)))
    for _ in range(2):
        with pytest.raises(ProgramUnloadableError, match=f"last line: {FIRST_USER + 1}$"):
            load("import os; print(os.getuid())", isolation=isolation, holder=None)
    assert of_job == FIRST_USER
    isolation.uid(UserHolder("k", 1, (tmp_path,)))
    with pytest.raises(JobUserError):
        load("import os; print(os.getuid())", isolation=isolation, holder=None)


def test_a_load_without_a_job_leaves_a_place_for_the_plans_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, store_url="file:///none")
    loading, question = ProgramLoading(settings, Launcher(settings)), ProgramQuestion("program.py", {}, 128, 1)
    waiting: list[UserHolder | None] = [JOB, None]

    def load(holder: UserHolder | None) -> ProgramAnswer:
        return loading.load(question, [], spark_conf={}, secrets=[], holder=holder)

    def run(*_: Any) -> ProgramAnswer:
        """Asks for a further load while this one runs."""
        if waiting:
            holder = waiting.pop()
            if holder is None:
                with pytest.raises(TooManyInFlightError, match="1 program is checked"):
                    load(None)
                run()
            else:
                load(holder)
        return ProgramAnswer(failure={})

    monkeypatch.setattr(program_loading, "_WAIT_S", 0.0)
    monkeypatch.setattr(ProgramLoading, "_run", run)
    load(None)
    assert waiting == []
    load(None)


def test_a_loader_whose_supervisor_has_not_begun_when_the_time_is_over_is_ended(load: Callable[..., None]) -> None:
    with pytest.raises(PlanTimeoutError):
        load("import time; time.sleep(613)", plan_timeout_ms=1)
    assert left_over() == []


@pytest.mark.parametrize("user", [None, JobUser(59_981, 59_981)])
def test_a_load_has_the_settings_libraries_and_secrets_of_its_program_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: JobUser | None
) -> None:
    steps: list[Any] = []
    answer = ProgramAnswer(failure={"code": "JOB_SCRIPT_FAILED", "message": "no"})
    secrets = JobSecrets({"KEYSCALE_JOB_SECRET_A": "1", "KEYSCALE_JOB_SECRET_B": "2"})
    settings = Settings(home=tmp_path, store_url="file:///none", job_secrets=secrets, plan_timeout_ms=7000)
    enclosures: Any = SimpleNamespace(
        variables=lambda run: {"QUOTA": run}, command=lambda run: ["enclosed", run], remove=steps.append
    )
    launcher = Launcher(settings, enclosures=enclosures)
    question = ProgramQuestion("program.py", {"a": "b"}, 128, 3)
    brought: Any = "brought"

    def place_libraries(given: Any, directory: Path) -> Any:
        steps.append(given)
        assert (directory / "work" / "program.py").read_bytes() == b"print()\n"
        assert msgspec.json.decode((directory / "work" / QUESTION_FILE).read_bytes(), type=ProgramQuestion) == question
        return "libraries"

    def environment(work: Path, of: Any, variables: Any, **rest: Any) -> dict[str, str]:
        assert (of is os.environ, rest) == (True, {"user": user, "libraries": "libraries"})
        return {"WORK": str(work), **variables}

    def start(directory: Path, command: list[str], variables: dict[str, str], enclosed: list[str]) -> Any:
        run = f"plan-{directory.name}"
        assert command == [settings, {"spark.x": "1"}, directory / "work", "libraries"]
        own = {"WORK": str(directory / "work"), "QUOTA": run}
        assert {name: value for name, value in variables.items() if name in own} == own
        assert [name for name in variables if "SECRET" in name] == ["KEYSCALE_JOB_SECRET_A"]
        assert enclosed == ["enclosed", run]
        (directory / "work" / ANSWER_FILE).write_bytes(msgspec.json.encode(answer))
        return SimpleNamespace(wait=lambda *s: steps.append(("wait", *s)), kill=lambda: steps.append("kill"))

    monkeypatch.setattr(launcher, "place_libraries", place_libraries)
    monkeypatch.setattr(Isolation, "user", lambda _, holder: user if holder is JOB else None)
    monkeypatch.setattr(program_loading, "make_directory", lambda path, **_: path.mkdir(exist_ok=True))
    monkeypatch.setattr(program_loading, "loader_environment", environment)
    monkeypatch.setattr(program_loading, "loader_command", lambda *given: list(given))
    monkeypatch.setattr(program_loading, "start_supervised", start)
    monkeypatch.setattr(program_loading, "processes_of", lambda _, uid: f"processes of {uid}")
    monkeypatch.setattr(program_loading, "strays_of", lambda uid: f"strays of {uid}")
    monkeypatch.setattr(program_loading, "kill_all", steps.append)
    loading = ProgramLoading(settings, launcher)
    given: dict[str, Any] = {"spark_conf": {"spark.x": "1"}, "secrets": ["A"], "brought": brought, "holder": JOB}
    assert loading.load(question, [b"print", b"()\n"], **given) == answer
    uid = None if user is None else user.uid
    strays = [] if user is None else [f"strays of {uid}"]
    assert steps[:5] == ["brought", ("wait", 7.0), "kill", ("wait",), f"processes of {uid}"]
    assert steps[5:-1] == strays
    assert steps[-1].startswith("plan-")
    assert list((tmp_path / "runs" / "plans").iterdir()) == []


def test_the_latest_declarations_are_remembered(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store_url="file:///none")
    loading = ProgramLoading(settings, Launcher(settings))
    answers = [ProgramAnswer(failure={"number": number}) for number in range(REMEMBERED_MAX + 1)]
    for number, answer in enumerate(answers[:-1]):
        loading.remember(str(number), answer)
    loading.remember("0", answers[0])
    loading.remember("new", answers[-1])
    known = [loading.recall(key) for key in ("0", "1", "2", "new")]
    assert known == [answers[0], None, answers[2], answers[-1]], "the oldest one is forgotten"
