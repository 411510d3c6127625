"""A spare driver rehearses a whole job of its own, and leaves nothing of it behind."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.messages import AttachRequest, Command, CommandResult, Commit, Heartbeat
from keyscale.jobs.runtime.driver import rehearsal
from keyscale.jobs.runtime.driver.rehearsal import Rehearsal
from keyscale.jobs.runtime.errors import ControlRefusedError
from keyscale.jobs.runtime.preparation import warm_up
from keyscale.vocabulary import CommandKind, DriverState

if TYPE_CHECKING:
    from keyscale.jobs.protocol.messages import Assignment

PROGRAM = Path(rehearsal.__file__).with_name("rehearsed_job.py")
FIRST = Commit(batch_id=0, at_ms=1)


class Run:
    """Stands for the run of a job: a script runs as the program's main module, and may fail."""

    made: list[Run]
    fails = False

    def __init__(self, spark: Any, channel: Any, assignment: Assignment, work_dir: Path, local_root: Path) -> None:
        self.spark, self.channel, self.assignment, self.work_dir = spark, channel, assignment, work_dir
        self.local_root = local_root
        self.inputs = sorted(path.name for path in Path(assignment.spec.parameters["input"]).iterdir())  # type: ignore[arg-type]
        Run.made.append(self)

    def run(self) -> None:
        sys.modules["__main__"] = ModuleType("the script")
        if Run.fails:
            raise ConnectionError("Spark has ended")


@pytest.fixture
def rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    Run.made, Run.fails = [], False
    monkeypatch.setattr(rehearsal, "JobRun", Run)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return Rehearsal(cast("Any", "spark"), tmp_path / "rehearsal", 3, tmp_path / "state")


def test_the_job_runs_twice_the_second_time_from_the_state_that_the_first_has_left(
    rehearsed: Rehearsal, tmp_path: Path
) -> None:
    main = sys.modules["__main__"]
    rehearsed.start()
    rehearsed.wait()
    assert sys.modules["__main__"] is main
    assert rehearsed.done
    first, second = Run.made
    assert [each.assignment.attempt for each in (first, second)] == [1, 2]
    assert [each.inputs for each in (first, second)] == [["0.json"], ["0.json", "1.json"]], "each run has new records"
    assert first.work_dir != second.work_dir
    for each in (first, second):
        given = each.assignment
        assert (each.spark, each.local_root) == ("spark", tmp_path / "state")
        assert (given.job_id, given.spec.parallelism, given.store_url) == (
            "rehearsal",
            3,
            (tmp_path / "rehearsal" / "store").as_uri(),
        )
        assert (given.artifact_filename, given.artifact_sha256) == (
            PROGRAM.name,
            hashlib.sha256(PROGRAM.read_bytes()).hexdigest(),
        )
        assert given.spec.checkpoints.interval_ms >= 3_600_000
    assert not (tmp_path / "rehearsal").exists()


def test_a_rehearsal_that_fails_or_is_no_longer_needed_ends_and_cleans_up(
    rehearsed: Rehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = sys.modules["__main__"]
    Run.fails = True
    rehearsed.start()
    rehearsed.finish()
    assert (len(Run.made) <= 1, rehearsed.done, sys.modules["__main__"]) == (True, True, main)
    assert "the warm-up failed" in caplog.text or not Run.made
    assert not (tmp_path / "rehearsal").exists()
    rehearsed.finish()


def test_the_job_is_cancelled_after_its_first_commit_or_when_the_driver_has_work(tmp_path: Path) -> None:
    cancelled = threading.Event()
    control = rehearsal._NoControl(cancelled)
    end = [Command(id="end", kind=CommandKind.CANCEL)]
    beat = Heartbeat(state=DriverState.RUNNING)
    assert control.heartbeat(beat).commands == []
    assert control.heartbeat(beat.model_copy(update={"first_commit": FIRST})).commands == end
    answered = {"first_commit": FIRST, "results": [CommandResult(command_id="end", status="COMPLETED")]}
    assert control.heartbeat(beat.model_copy(update=answered)).commands == []
    cancelled.set()
    assert control.heartbeat(beat).commands == end
    assert control.attach(AttachRequest(pid=1, host="h")).decision == "exit"
    control.fetch_artifact(tmp_path / "copy.py")
    assert (tmp_path / "copy.py").read_bytes() == PROGRAM.read_bytes()
    for refused in (control.store_credentials, lambda: control.wait_for_call(1, 1.0)):
        with pytest.raises(ControlRefusedError, match="rehearsal"):
            refused()
    assert not control.can_call


@pytest.mark.parametrize("fails", [True, False])
def test_workers_are_started_for_all_tasks_beside_the_script_and_a_failure_is_only_logged(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    asked: list[Any] = []

    def parallelize(items: Any, parts: int) -> Any:
        asked.append(([*items], parts))
        if fails:
            raise ConnectionError("Spark has ended")
        return SimpleNamespace(foreach=asked.append)

    context = SimpleNamespace(setJobDescription=asked.append, parallelize=parallelize)
    thread = warm_up.start_workers(cast("Any", SimpleNamespace(sparkContext=context)), 3)
    thread.join()
    assert thread.daemon
    assert asked == ["start workers", ([0, 1, 2], 3), *([] if fails else [warm_up._import_task])]
    assert caplog.messages == (["no workers were started ahead"] if fails else [])


def test_the_workers_of_a_warm_up_pass_all_rows_on() -> None:
    assert [*warm_up._pass_on(cast("Any", iter(["one", "two"])))] == ["one", "two"]
