"""Drivers' processes: started once, seen as they are, killed to the last one. Real processes, a shell for a driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from api import supervisor
from api.driver_command import JOB_SECRETS, driver_command, driver_environment, master_of, stays_on_loopback
from api.errors import SettingInvalidError
from api.launcher import Launcher
from api.lifecycle.facts import ProcessState
from api.settings import Settings
from db.models import Attempt, Job
from jobs.secret import PREFIX
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUPERVISOR = Path(supervisor.__file__)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(Settings(home=tmp_path, store_url="file:///store"))


@pytest.fixture
def attempt(launcher: Launcher) -> Attempt:
    return Attempt(job_id="job", number=1, parallelism=2, launched_on=launcher.host)


@pytest.fixture
def run(launcher: Launcher, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Runs a shell command as the driver of attempt 1, as the launcher would."""
    directory = tmp_path / "runs" / "job" / "1"
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str) -> subprocess.Popen[bytes]:
        launcher.prepare("job", 1)
        environment = {"PATH": os.defpath, "KEYSCALE_WORK_DIR": str(directory / "work")}
        command = [sys.executable, "-I", str(SUPERVISOR), str(directory), "/bin/sh", "-c", script]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        started.append(process)
        return process

    yield start
    launcher.kill("job", 1)
    for process in started:
        process.kill()
        process.wait()


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_an_attempt_that_was_never_launched_is_seen_so(launcher: Launcher) -> None:
    assert launcher.inspect(Attempt(job_id="job", number=1)).state is ProcessState.UNLAUNCHED
    noted = Attempt(job_id="job", number=1, launched_on=launcher.host)
    assert launcher.inspect(noted).state is ProcessState.UNLAUNCHED  # the launcher died between the note and the deed


def test_an_attempt_of_another_host_is_unknown(launcher: Launcher) -> None:
    away = Attempt(job_id="job", number=1, launched_on="elsewhere.example")
    assert launcher.inspect(away).state is ProcessState.UNKNOWN


def test_a_driver_that_runs_is_alive_and_its_exit_code_is_known_afterwards(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = run(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo a last word; exit 3")
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.ALIVE)
    (tmp_path / "go").touch()
    assert process.wait(30) == 3
    seen = launcher.inspect(attempt)
    assert (seen.state, seen.exit_code) == (ProcessState.DEAD, 3)
    assert launcher.log_tail("job", 1, 100) == ("a last word\n", 12)
    assert launcher.log_tail("job", 1, 5) == ("word\n", 12)


def test_of_two_supervisors_of_one_attempt_the_second_one_does_nothing(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    first = run("echo first; exec sleep 600")
    wait_until(lambda: launcher.log_tail("job", 1, 100)[0])
    second = run("echo second; exec sleep 600")
    assert second.wait(30) == 0
    assert first.poll() is None
    assert launcher.log_tail("job", 1, 100)[0] == "first\n"
    assert launcher.inspect(attempt).state is ProcessState.ALIVE


def test_a_killed_supervisor_is_seen_and_what_it_leaves_is_killed(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = run("sleep 600 & exec sleep 600")
    wait_until(lambda: len(children(process)) == 2)
    left = children(process)
    process.kill()
    process.wait()
    assert launcher.inspect(attempt).state is ProcessState.DEAD
    launcher.kill("job", 1)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in left)


def test_a_kill_reaches_workers_that_have_left_the_process_group_and_nobody_else(
    launcher: Launcher, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    python = f"{sys.executable} -c 'import os, time; os.setpgid(0, 0); time.sleep(600)'"
    process = run(f"{python} & exec sleep 600")
    worker = wait_until(
        lambda: next((child for child in children(process) if os.getpgid(child.pid) == child.pid), None)
    )
    launcher.kill("job", 1)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_the_process_that_asked_for_work_decides(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = run("sleep 600 & wait")
    driver = wait_until(lambda: next((c for c in children(process) if c.name() == "sleep"), None))
    attempt.pid, attempt.host = driver.pid, launcher.host
    assert launcher.inspect(attempt).state is ProcessState.ALIVE
    driver.send_signal(signal.SIGSTOP)
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.SUSPENDED)
    driver.kill()
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.DEAD)


def test_a_process_number_that_was_given_away_again_is_not_taken_for_the_driver(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    run("exec sleep 600")
    attempt.pid, attempt.host = os.getpid(), launcher.host
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.DEAD)


def test_a_token_is_made_once_and_only_its_owner_can_read_it(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.prepare("job", 1) == launcher.prepare("job", 1)
    assert launcher.prepare("job", 2) != launcher.prepare("job", 1)
    token = tmp_path / "runs" / "job" / "1" / "token"
    assert token.stat().st_mode & 0o077 == 0
    launcher.clean_up("job", 1)
    assert not token.exists()


def test_a_program_that_is_not_there_is_a_dead_driver_with_a_reason(
    launcher: Launcher, attempt: Attempt, tmp_path: Path
) -> None:
    launcher.prepare("job", 1)
    directory = tmp_path / "runs" / "job" / "1"
    ran = subprocess.run([sys.executable, "-I", str(SUPERVISOR), str(directory), "/no/such/program"], check=False)
    assert ran.returncode == supervisor.EXIT_CANNOT_RUN
    assert launcher.inspect(attempt).exit_code == supervisor.EXIT_CANNOT_RUN
    assert "cannot be started" in launcher.log_tail("job", 1, 1000)[0]


def test_a_driver_gets_no_secret_but_its_own(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "KEYSCALE_HOME": str(tmp_path),
            "KEYSCALE_DATABASE_URL": "postgresql://u:secret@db/x",
            "AWS_SECRET_ACCESS_KEY": "for-the-store",
        }
    )
    host = {"PATH": "/bin", "KEYSCALE_DATABASE_URL": "postgresql://u:secret@db/x", "KEYSCALE_TOKEN": "t", "OTHER": "x"}
    environment = driver_environment(settings, "own", tmp_path / "work", host)
    assert {"own", "for-the-store"} <= set(environment.values())
    assert not any("secret@" in value for value in environment.values())
    assert not {"KEYSCALE_DATABASE_URL", "KEYSCALE_TOKEN", "OTHER", "KEYSCALE_HOME"} & set(environment)


def test_a_driver_gets_the_secrets_that_are_meant_for_jobs(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    environment = driver_environment(settings, "own", tmp_path / "work", {f"{JOB_SECRETS}ORDERS": "hidden"})
    assert environment[f"{JOB_SECRETS}ORDERS"] == "hidden"
    assert JOB_SECRETS == PREFIX


def test_a_jobs_settings_do_not_outrank_those_that_promises_rest_on(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    job = Job(name="x", spark_conf={"spark.speculation": "true", "spark.driver.memory": "3g"})
    command = driver_command(settings, job, Attempt(number=1, parallelism=3), tmp_path)
    assert "spark.speculation=false" in command
    assert "spark.driver.memory=3g" in command
    assert command[command.index("--master") + 1] == "local[4,4]"
    assert not any("token" in part.lower() for part in command)


def test_a_cluster_is_used_as_it_is_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    assert master_of(settings, 3) == "spark://master:7077"
    assert "SPARK_LOCAL_IP" not in driver_environment(settings, "t", tmp_path, {})
    command = driver_command(settings, Job(name="x", spark_conf={}), Attempt(number=1, parallelism=3), tmp_path)
    assert not any(part.startswith("spark.driver.bindAddress") for part in command)


@pytest.mark.parametrize("master", ["local", "spark://127.0.0.1:7077", "spark://localhost:7077,[::1]:7078"])
def test_a_driver_whose_spark_is_on_this_host_listens_on_loopback_only(tmp_path: Path, master: str) -> None:
    settings = Settings(home=tmp_path, spark_master=master)
    command = driver_command(settings, Job(name="x", spark_conf={}), Attempt(number=1, parallelism=3), tmp_path)
    assert {"spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1"} <= set(command)
    assert driver_environment(settings, "t", tmp_path, {})["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_attempts_of_a_job_share_their_local_state_and_nothing_else(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    runs = [driver_environment(settings, "t", tmp_path / "job" / number / "work", {}) for number in ("1", "2")]
    assert {run["KEYSCALE_LOCAL_STATE_DIR"] for run in runs} == {str(tmp_path / "job" / "state")}
    assert len({run["KEYSCALE_WORK_DIR"] for run in runs}) == 2


@pytest.mark.parametrize("master", ["spark://master:7077", "spark://127.0.0.1:7077,other:7077", "yarn"])
def test_a_driver_of_another_hosts_cluster_can_be_reached_by_it(master: str) -> None:
    assert not stays_on_loopback(master)


def test_a_driver_takes_a_core_a_subtask_of_a_cluster_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    for conf, cores in (({}, 3), ({"spark.cores.max": "8"}, 8)):
        command = driver_command(settings, Job(name="x", spark_conf=conf), Attempt(number=1, parallelism=3), tmp_path)
        assert f"spark.cores.max={cores}" in command


def test_a_home_that_spark_would_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalidError, match="comma"):
        Settings.from_environment({"KEYSCALE_HOME": str(tmp_path / "a,b")})
