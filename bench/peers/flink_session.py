"""A standalone session of Flink: its processes, and its jobs by REST."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Self

from bench.peers.paced_job import ChangeFailedError, names_in
from keyscale.api.cli.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHECKPOINT_INTERVAL_MS = 500
"""Flink publishes files at checkpoints, so these compare with the peers' batches."""
TTL_HOURS = 36
LIMIT_SECONDS = 300.0
MAX_PARALLELISM = 128
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_JAVA_OPTIONS = re.compile(r"^ +all: (.*)$", re.MULTILINE)
_POLL_SECONDS = 0.02
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_HEAP = {_JOB_MANAGER: "1g", _TASK_MANAGER: "1200m"}  # Flink's default sizes
_SETTINGS = {
    "execution.target": "remote",
    "pipeline.max-parallelism": str(MAX_PARALLELISM),
    "table.exec.state.ttl": f"{TTL_HOURS} h",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": f"{CHECKPOINT_INTERVAL_MS} ms",
    "execution.checkpointing.local-backup.enabled": "true",
    "execution.state-recovery.from-local": "true",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "pekko.ask.timeout": "60 s",  # a busy machine is slow, not broken
    "pekko.startup-timeout": "60 s",
    # The default settings would add up to 30 s each to what is measured.
    "heartbeat.interval": "500 ms",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 ms",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "0 ms",
    # A taskmanager without Flink's scripts needs each size.
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory.framework.heap.size": "128mb",
    "taskmanager.memory.framework.off-heap.size": "128mb",
    "taskmanager.memory.jvm-metaspace.size": "256mb",
    "taskmanager.memory.jvm-overhead.min": "192mb",
    "taskmanager.memory.jvm-overhead.max": "192mb",
    "taskmanager.memory.task.heap.size": "1gb",
    "taskmanager.memory.task.off-heap.size": "0",
    "taskmanager.memory.managed.size": "1gb",
    "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.network.max": "128mb",
}


class FlinkSession:
    """A jobmanager, taskmanagers and a client, which end with the `with` block.

    Attributes:
        source: The folder that the jobs read.
        output: The folder that the jobs write.
    """

    def __init__(
        self,
        work: Path,
        python: str,
        jars: Sequence[str],
        *,
        slots: int,
        task_managers: int,
        scheduler: str = "Default",
    ) -> None:
        self.source = work / "input"
        self.output = work / "output"
        self._work = work
        self._python = python
        self._jars = jars
        rest, rpc = str(free_port()), str(free_port())
        self._rest = f"http://127.0.0.1:{rest}"
        self._settings = {
            **_SETTINGS,
            "jobmanager.scheduler": scheduler,
            "rest.address": "127.0.0.1",
            "rest.port": rest,
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": rpc,
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": str(slots),
            "io.tmp.dirs": str(work / "tmp"),
            "web.tmpdir": str(work / "tmp"),
            "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
            "execution.checkpointing.savepoint-dir": (work / "savepoints").as_uri(),
        }
        self._names = [f"taskmanager-{number}" for number in range(task_managers)]
        self._task_managers: dict[str, subprocess.Popen[Any]] = {}
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        conf = self._work / "conf"
        for folder in (self.source, self.output, conf, self._work / "tmp"):
            folder.mkdir()
        (conf / "config.yaml").write_text(json.dumps(self._settings), encoding="utf-8")  # YAML includes JSON
        try:
            self._start(_JOB_MANAGER)
            for name in self._names:
                self._start_task_manager(name)
            self._client = self._start_client()
            self.wait_for_task_managers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def files(self) -> list[Path]:
        """Returns the published files; a file in progress is hidden."""
        return list(self.output.glob("part-*"))

    def commits(self) -> int:
        """Returns the number of the first subtask's published files: one per commit."""
        return sum("-0-" in name and name.startswith("part-") for name in names_in(self.output))

    def submit(self, parallelism: int, savepoint: str | None = None) -> str:
        """Starts a job, from a savepoint if there is one.

        Returns:
            The job's id.
        """
        settings = {**self._settings, "parallelism.default": str(parallelism)}
        if savepoint is not None:
            settings["execution.state-recovery.path"] = savepoint
            settings["execution.state-recovery.claim-mode"] = "CLAIM"  # its files are used, not copied
        return self._client(settings)

    def stop_with_savepoint(self, job: str) -> str:
        """Stops a job, and returns its savepoint's location."""
        asked = {"drain": False, "formatType": "NATIVE"}
        trigger = self._call("POST", f"/jobs/{job}/stop", asked)["request-id"]

        def ended() -> Mapping[str, Any] | None:
            answer = self._call("GET", f"/jobs/{job}/savepoints/{trigger}")
            return answer["operation"] if answer["status"]["id"] == "COMPLETED" else None

        operation = _wait_for("a savepoint", ended)
        if "location" not in operation:
            raise ChangeFailedError(f"no savepoint: {operation}")
        return str(operation["location"])

    def change_parallelism(self, job: str, parallelism: int) -> None:
        """Changes a job's resource requirements, and waits until it runs so."""
        path = f"/jobs/{job}/resource-requirements"
        wanted = {
            vertex: {"parallelism": {"lowerBound": 1, "upperBound": parallelism}} for vertex in self._vertices(job)
        }
        self._call("PUT", path, wanted)
        _wait_for("the parallelism", lambda: set(self._vertices(job).values()) == {(parallelism, "RUNNING")})

    def state_bytes(self, job: str) -> int:
        """Returns the size of a job's last checkpoint."""
        return int(self._call("GET", f"/jobs/{job}/checkpoints")["latest"]["completed"]["state_size"])

    def kill_task_manager(self) -> None:
        """Kills the taskmanager with the most tasks, and starts it again."""
        used = self._call("GET", "/taskmanagers")["taskmanagers"]
        name = str(min(used, key=lambda manager: manager["freeSlots"])["id"])
        self._task_managers[name].kill()
        self._start_task_manager(name)

    def wait_for_task_managers(self) -> None:
        """Waits until all taskmanagers are registered."""

        def registered() -> bool:
            return len(self._call("GET", "/taskmanagers")["taskmanagers"]) == len(self._names)

        _wait_for("the taskmanagers", registered)

    def _start_client(self) -> Callable[[Mapping[str, str]], str]:
        """Returns a function that submits a job and returns its id."""
        command = [self._python, "-m", "bench.peers.flink_client", str(self._work)]
        environment = {**os.environ, "HADOOP_CLASSPATH": ":".join(self._jars), "FLINK_LOG_DIR": str(self._work)}
        client = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment)  # noqa: S603 - our own module
        self._processes.append(client)
        asked, answers = client.stdin, client.stdout
        if asked is None or answers is None:
            raise ChangeFailedError("the client has no pipes")

        def submit(settings: Mapping[str, str]) -> str:
            print(json.dumps(settings), file=asked, flush=True)
            job = next((line.strip() for line in answers if _JOB_ID.fullmatch(line.strip())), None)
            if job is None:
                raise ChangeFailedError("the client ended without a job")
            return job

        return submit

    def _start_task_manager(self, name: str) -> None:
        """Starts a taskmanager, which finds the local state of its predecessor."""
        own = {"taskmanager.resource-id": name, "process.taskmanager.working-dir": str(self._work / name)}
        self._task_managers[name] = self._start(_TASK_MANAGER, *(f"-D{key}={value}" for key, value in own.items()))

    def _start(self, entry: str, *arguments: str) -> subprocess.Popen[Any]:
        home = next(Path(self._python).parents[1].glob("lib/python*/site-packages/pyflink"))
        options = _JAVA_OPTIONS.search((home / "conf" / "config.yaml").read_text(encoding="utf-8"))
        if options is None:
            raise ChangeFailedError("Flink's own configuration has no options for Java")
        logging = f"-Dlog4j.configurationFile={home}/conf/log4j-console.properties"
        classpath = ":".join([f"{home}/lib/*", *self._jars])
        command = ["java", *options[1].split(), f"-Xmx{_HEAP[entry]}", logging, "-cp", classpath, entry]
        log = self._work / f"{entry.rpartition('.')[2]}-{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - Flink's own programs
                [*command, "--configDir", str(self._work / "conf"), *arguments], stdout=output, stderr=subprocess.STDOUT
            )
        self._processes.append(process)
        return process

    def _vertices(self, job: str) -> dict[str, tuple[int, str]]:
        vertices = self._call("GET", f"/jobs/{job}")["vertices"]
        return {vertex["id"]: (vertex["parallelism"], vertex["status"]) for vertex in vertices}

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - loopback http, built above
            self._rest + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return json.loads(response.read() or b"null")


def _wait_for(what: str, look: Callable[[], Any]) -> Any:
    """Returns the first answer that is true.

    A session that is starting refuses calls.
    """
    give_up = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < give_up:
        with suppress(OSError):
            if answer := look():
                return answer
        time.sleep(_POLL_SECONDS)
    raise ChangeFailedError(f"waited {LIMIT_SECONDS:.0f} s for {what}")
