"""A driver's program: its environment, its first answer, and the exit code that says how the run has ended."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import ANY

import pytest

from keyscale.jobs.protocol.messages import AttachRequest, AttachResponse, Heartbeat
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.spare import SPARE_VARIABLE
from keyscale.jobs.runtime.control.channel import FileControl
from keyscale.jobs.runtime.driver import main as driver
from keyscale.jobs.runtime.driver.main import DriverEnvironment
from keyscale.jobs.runtime.errors import (
    AttemptOverError,
    ControlRefusedError,
    ControlUnreachableError,
    DriverEnvironmentError,
)
from keyscale.jobs.runtime.executor.worker_stacks import NAME_VARIABLE
from keyscale.vocabulary import DriverState
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from keyscale.jobs.runtime.driver.attachment import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLES = {
    "KEYSCALE_WORK_DIR": "/attempt",
    "KEYSCALE_CONTROL_URL": "http://127.0.0.1:1",
    "KEYSCALE_ATTEMPT": "job:3",
    "KEYSCALE_ATTEMPT_TOKEN": "token",
}
OF_FILE = {"KEYSCALE_WORK_DIR": "/attempt", "KEYSCALE_ASSIGNMENT_FILE": "/a.json", "KEYSCALE_ARTIFACT_FILE": "/job.py"}
ASSIGNMENT = new_assignment(
    job_id="job",
    job_name="flights",
    attempt=3,
    parallelism=2,
    max_parallelism=8,
    artifact_filename="job.py",
    artifact_sha256="0",
    store_url="file:///store",
    next_checkpoint_id=1,
)
RUN = AttachResponse(decision="run", assignment=ASSIGNMENT)
PREVIEW = AttachResponse(decision="wait", preview=ASSIGNMENT)
EXIT = AttachResponse(decision="exit")


def test_a_driver_of_a_control_plane_reads_where_and_as_whom_it_attaches() -> None:
    assert DriverEnvironment.read(VARIABLES) == DriverEnvironment(
        work_dir=Path("/attempt"),
        local_root=Path("/attempt/state"),
        control_url="http://127.0.0.1:1",
        attempt_token=VARIABLES["KEYSCALE_ATTEMPT_TOKEN"],
        attempt="job:3",
        store_url="",
        assignment_file=None,
        artifact_file=None,
        ca_file=None,
        libraries=frozenset(),
    )
    more = {
        "KEYSCALE_LOCAL_STATE_DIR": "/disk",
        "KEYSCALE_JOB_STORE_URL": "file:///store",
        "KEYSCALE_CA_FILE": "/ca.pem",
        "KEYSCALE_LIBRARIES": "a,b",
    }
    read = DriverEnvironment.read({**VARIABLES, **more})
    assert (read.work_dir, read.local_root, read.store_url) == (Path("/attempt"), Path("/disk"), "file:///store")
    assert (read.ca_file, read.libraries) == ("/ca.pem", {"a", "b"})


def test_a_driver_of_an_assignment_file_has_no_control_plane() -> None:
    read = DriverEnvironment.read({**OF_FILE, "KEYSCALE_LIBRARIES": "a", "KEYSCALE_CA_FILE": "/ca.pem"})
    assert (read.control_url, read.ca_file, read.libraries) == (None, None, {"a"})
    assert (read.assignment_file, read.artifact_file) == (Path("/a.json"), Path("/job.py"))
    with contextlib.closing(read.channel()) as channel:
        assert isinstance(channel, FileControl)


@pytest.mark.parametrize(
    ("variables", "missing"),
    [(VARIABLES, name) for name in VARIABLES] + [(OF_FILE, "KEYSCALE_WORK_DIR"), (OF_FILE, "KEYSCALE_ARTIFACT_FILE")],
)
def test_a_variable_that_is_missing_or_empty_is_named(variables: dict[str, str], missing: str) -> None:
    others = {name: value for name, value in variables.items() if name != missing}
    for left in (others, {**others, missing: ""}):
        with pytest.raises(DriverEnvironmentError, match=f"{missing} is not set"):
            DriverEnvironment.read(left)


@pytest.mark.parametrize("store_url", ["", "file:///store"])
def test_a_driver_with_a_store_looks_there_for_another_control_plane(
    monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    def search(attempt: str, token: str, open_store: Callable[[], str], *, ca_file: str) -> Any:
        return (attempt, token, open_store(), ca_file)

    monkeypatch.setattr(driver, "open_store", lambda url: f"store at {url}")
    monkeypatch.setattr(driver, "ControlSearch", search)
    monkeypatch.setattr(driver, "HttpControl", lambda *given: given)
    more = {"KEYSCALE_JOB_STORE_URL": store_url, "KEYSCALE_CA_FILE": "/ca.pem"}
    channel = DriverEnvironment.read({**VARIABLES, **more}).channel()
    found = ("job:3", "token", f"store at {store_url}", "/ca.pem") if store_url else None
    assert channel == ("http://127.0.0.1:1", "job:3", "token", found, "/ca.pem")


class Control:
    """A control plane that gives the next answer of a list to each request for work."""

    def __init__(self, *answers: AttachResponse | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[AttachRequest] = []
        self.heartbeats: list[Heartbeat] = []

    def attach(self, request: AttachRequest) -> AttachResponse:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats.append(heartbeat)
        if len(self.heartbeats) == 1:
            raise ControlUnreachableError("away")

    def close(self) -> None:
        self.answers.append(EXIT)


class WarmUp:
    """A warm-up that takes no time."""

    done = True

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def finish(self) -> None:
        self.calls.append("finish")


SPARK = SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl="http://ui", environment={}))


@pytest.fixture
def warm_ups(monkeypatch: pytest.MonkeyPatch) -> list[WarmUp]:
    made: list[WarmUp] = []

    def warm_up(*arguments: Any) -> WarmUp:
        made.append(WarmUp(*arguments))
        return made[-1]

    monkeypatch.setattr(driver, "WarmUp", warm_up)
    return made


def test_the_word_that_a_driver_is_warm_needs_no_answer() -> None:
    control = Control()
    for _ in range(2):
        driver.beat_ready(cast("Any", control))
    assert [beat.state for beat in control.heartbeats] == [DriverState.STANDBY] * 2


@pytest.mark.parametrize("has_run", [True, False])
def test_a_spare_runs_with_the_variables_of_its_run_or_ends_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_run: bool
) -> None:
    secret = f"{JOB_SECRET_PREFIX}KEY"
    given = {
        "KEYSCALE_CONTROL_URL": "http://127.0.0.1:1",
        "KEYSCALE_ATTEMPT": "job:7",
        "KEYSCALE_ATTEMPT_TOKEN": "token",
        secret: "hidden",
    }
    ran: list[tuple[str, Any]] = []

    def run(spark: Any, environment: Any, warm_up: Any) -> int:
        ran.append((environment.attempt, warm_up))
        assert [spark.sparkContext.environment.pop(NAME_VARIABLE)] == of_warm_up, "else they are other workers"
        assert spark.sparkContext.environment == {secret: "hidden"}, "workers with the secret are other workers"
        return 5

    def rehearse(spark: Any, *_: Any) -> WarmUp:
        of_warm_up.append(spark.sparkContext.environment[NAME_VARIABLE])
        return warm_up

    warm_up, of_warm_up = WarmUp(), list[str]()
    for name in given:
        monkeypatch.setenv(name, "")  # and so as before after the test
    monkeypatch.setenv(SPARE_VARIABLE, "1")
    monkeypatch.setenv("KEYSCALE_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(driver, "end_with_parent", lambda: None)
    monkeypatch.setattr(driver.logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(driver, "SpareWait", lambda _: SimpleNamespace(variables=lambda _: given if has_run else None))
    monkeypatch.setattr(driver, "SparkSession", SimpleNamespace(builder=SimpleNamespace(getOrCreate=lambda: SPARK)))
    monkeypatch.setattr(driver, "Rehearsal", rehearse)
    monkeypatch.setattr(driver, "run_driver", run)
    SPARK.sparkContext.environment.clear()
    assert driver.main() == (5 if has_run else 0)
    assert ran == ([("job:7", warm_up)] if has_run else [])


class Access:
    """Access to the object store by granted credentials."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def renew(self) -> None:
        self.calls.append("renew")
        raise ControlUnreachableError("away")


@pytest.mark.parametrize(
    ("answer", "end", "code"),
    [
        (RUN, DriverState.STOPPED, 0),
        (RUN, DriverState.FINISHED, 0),
        (RUN, DriverState.FAILED, 1),
        (RUN, DriverState.FENCED, 10),
        (PREVIEW, DriverState.FAILED, 1),
        (EXIT, None, 0),
        (AttemptOverError("over"), None, 10),
        (ControlRefusedError("unknown"), None, 1),
    ],
)
def test_the_exit_code_says_how_the_run_has_ended(
    answer: AttachResponse | Exception,
    end: DriverState | None,
    code: int,
    *,
    warm_ups: list[WarmUp],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control, access, runs = Control(answer), Access(), []

    def run_of(
        *arguments: Any,
        libraries: frozenset[str],
        attachment: Attachment | None,
        workers: str,
        leave_spark: Callable[[], None],
    ) -> Any:
        assert callable(leave_spark)
        assert workers == SPARK.sparkContext.environment[NAME_VARIABLE]
        assert (attachment is not None) is (answer is PREVIEW)
        runs.append((*arguments[2:], libraries))
        return SimpleNamespace(run=lambda: end)

    environment = SimpleNamespace(
        work_dir=tmp_path / "new" / "work",
        local_root=tmp_path / "state",
        libraries=frozenset({"1"}),
        channel=lambda: control,
    )
    monkeypatch.setattr(driver, "DriverEnvironment", SimpleNamespace(read=lambda _: environment))
    builder = SimpleNamespace(getOrCreate=lambda: SPARK)
    monkeypatch.setattr(driver, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(driver, "StoreAccess", SimpleNamespace(of=lambda *_: access))
    monkeypatch.setattr(driver, "JobRun", run_of)
    monkeypatch.setattr(driver, "end_with_parent", lambda: None)
    monkeypatch.setattr(driver.logging, "basicConfig", lambda **_: None)
    SPARK.sparkContext.environment.clear()
    monkeypatch.setenv("KEYSCALE_EXECUTOR_PYTHONPATH", "libraries")
    assert driver.main() == code
    assert SPARK.sparkContext.environment == {"PYTHONPATH": "libraries", NAME_VARIABLE: ANY}
    assert control.answers == [EXIT], "the connection is closed"
    assert len(warm_ups) == 1
    assert environment.work_dir.is_dir()
    if end is None:
        assert (access.calls, runs) == (["open"], [])
    else:
        assert access.calls == (["open"] if answer is PREVIEW else ["open", "renew"])
        assert warm_ups[0].calls == (["start"] if answer is PREVIEW else ["finish"])
        assert (control.requests[0].spark_ui_url, control.requests[0].wants_preview) == ("http://ui", True)
        assert runs == [(ASSIGNMENT, tmp_path / "new" / "work", tmp_path / "state", {"1"})]


def test_a_wrong_environment_has_an_exit_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(driver.os, "environ", {})
    assert driver.main() == 2


@pytest.mark.parametrize("leaves", [True, False])
def test_a_driver_ends_with_spark_submit_unless_it_has_left_spark_for_its_sleep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, leaves: bool
) -> None:
    events: list[Any] = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr(driver, "_PARENT_POLL_SECONDS", 0)
    monkeypatch.setattr(driver, "_leaves_parent", threading.Event())
    monkeypatch.setattr(driver, "end_jvm", lambda spark: events.append((spark, driver._leaves_parent.is_set())))
    monkeypatch.setattr(driver, "os", SimpleNamespace(getppid=lambda: next(parents), _exit=events.append))
    if leaves:
        driver.leave_spark(cast("Any", "spark"))
    driver._watch_parent(7)
    if leaves:
        assert (events, caplog.messages) == ([("spark", True)], []), "the watch knows before the JVM ends"
    else:
        assert (events, caplog.messages) == (
            [driver.EXIT_FAILED],
            ["spark-submit has ended, so the driver ends too"],
        )
