"""The local stack's scripts start real processes on 127.0.0.1, are idempotent, and stop only what they started."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import psutil
import psycopg
import pytest
from botocore.config import Config

from keyscale.api.cli.process import free_port
from keyscale.deploy.stack.bucket import create_bucket, honours_conditional_create
from keyscale.installation import IMPORT_PATH
from tests.support.repository import ROOT
from tests.support.servers.listening import listening_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

SCRIPTS = ("postgres", "object-store", "spark-cluster", "kafka")


class Stack:
    """The scripts, run on their own directory and ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "KEYSCALE_STACK_DIR": str(directory),
            "KEYSCALE_STACK_POSTGRES_PORT": str(free_port()),
            "KEYSCALE_STACK_OBJECT_STORE_PORT": str(free_port()),
        }

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "deploy" / "stack" / script, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def succeed(self, script: str, *arguments: str) -> str:
        done = self.run(script, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def pid(self, name: str) -> int:
        return int((self.directory / f"{name}.pid").read_text().split()[0])


@pytest.fixture
def stack() -> Iterator[Stack]:
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-stack-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        started = Stack(directory)
        yield started
        for script in SCRIPTS:
            started.succeed(script, "stop")


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("status", "too", "much")])
def test_wrong_usage_shows_the_usage_and_exits_with_2(stack: Stack, script: str, arguments: tuple[str, ...]) -> None:
    done = stack.run(script, *arguments)
    assert done.returncode == 2
    assert f"Usage: deploy/stack/{script}" in done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_no_error(stack: Stack, script: str) -> None:
    assert f"Usage: deploy/stack/{script}" in stack.succeed(script, "--help")


@pytest.mark.parametrize("script", SCRIPTS)
def test_stopping_a_stopped_service_is_no_error(stack: Stack, script: str) -> None:
    stack.succeed(script, "stop")
    assert stack.run(script, "status").returncode == 1


def test_postgres_is_started_once_keeps_its_data_through_a_restart_and_refuses_a_wrong_password(stack: Stack) -> None:
    stack.succeed("postgres", "start")
    pid = stack.pid("postgres")
    stack.succeed("postgres", "start")
    assert stack.pid("postgres") == pid
    assert listening_addresses(family(pid)) == {"127.0.0.1"}

    url = stack.succeed("postgres", "url")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    stack.succeed("postgres", "stop")
    assert not is_running(pid)
    stack.succeed("postgres", "start")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)

    user, _, rest = url.partition("@")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"{user.rpartition(':')[0]}:wrong@{rest}")


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(stack: Stack) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        stack.directory.joinpath("postgres.pid").write_text(f"{other.pid} 1\n")
        assert stack.run("postgres", "status").returncode == 1
        stack.succeed("postgres", "stop")
        assert other.poll() is None
        other.kill()


def test_a_taken_port_is_named_and_not_mistaken_for_a_started_server(stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        stack.environment["KEYSCALE_STACK_OBJECT_STORE_PORT"] = str(taken.getsockname()[1])
        done = stack.run("object-store", "start", "--moto")
    assert done.returncode == 1
    assert "is taken by another program" in done.stderr


def test_the_object_store_has_its_bucket_and_honours_conditional_creates(stack: Stack) -> None:
    stack.succeed("object-store", "start", "--moto")
    assert listening_addresses(family(stack.pid("object-store"))) == {"127.0.0.1"}
    settings = dict(
        line.removeprefix("export ").split("=", 1) for line in stack.succeed("object-store", "env").splitlines()
    )
    client = boto3.client(
        "s3",
        endpoint_url=settings["KEYSCALE_S3_ENDPOINT"],
        region_name=settings["AWS_REGION"],
        aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    create_bucket(client, "keyscale")  # it exists already: no error
    assert honours_conditional_create(client, "keyscale")

    def forget_condition(params: dict[str, dict[str, str]], **_: object) -> None:
        params["headers"].pop("If-None-Match", None)

    client.meta.events.register("before-call.s3.PutObject", forget_condition)
    assert not honours_conditional_create(client, "keyscale")


@pytest.mark.exhaustive
def test_the_spark_cluster_starts_its_workers_and_replaces_a_killed_one(stack: Stack) -> None:
    # The pages use the ports after the master's: take one far from the others.
    stack.environment["KEYSCALE_STACK_SPARK_PORT"] = str(free_port())
    stack.succeed("spark-cluster", "start", "--workers", "2", "--memory-mb", "512")
    pids = {name: stack.pid(name) for name in ("spark-master", "spark-worker-1", "spark-worker-2")}
    for pid in pids.values():
        assert listening_addresses(family(pid)) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    # Executors must be able to import the code of the drivers' tasks.
    assert str(IMPORT_PATH) in psutil.Process(pids["spark-worker-1"]).environ()["PYTHONPATH"].split(os.pathsep)

    psutil.Process(pids["spark-worker-2"]).kill()
    stack.succeed("spark-cluster", "start", "--workers", "2", "--memory-mb", "512")
    assert stack.pid("spark-worker-1") == pids["spark-worker-1"]
    assert stack.pid("spark-worker-2") != pids["spark-worker-2"]

    stack.succeed("spark-cluster", "stop")
    assert not any(is_running(pid) for pid in pids.values())
