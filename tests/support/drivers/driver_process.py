"""Real driver processes for tests: spark-submit on the standalone form, and the output expected of the chain job."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import psutil
import pyarrow.parquet as pq

from keyscale.installation import DRIVER_PROGRAM, IMPORT_PATH
from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.messages import (
    Assignment,
    CheckpointReport,
    Command,
    CommandResult,
    DiagnosticCommand,
    DiagnosticReport,
    Heartbeat,
)
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.protocol.spark_switches import without_switched_off
from keyscale.jobs.protocol.specification import CheckpointSettings, RestartStrategy
from keyscale.jobs.runtime.preparation.class_archive_build import build_if_missing
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.vocabulary import DiagnosticKind

CHAIN_JOB = ROOT / "tests" / "support" / "jobs" / "chain_job.py"
ARCHIVE = ClassArchive.of_environment()


@dataclass(slots=True)
class DriverProcess:
    """One driver under test, started with its own assignment file."""

    home: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        home: Path,
        *,
        cores: int = 2,
        artifact: Path = CHAIN_JOB,
        environment: Mapping[str, str] | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> DriverProcess:
        """Start a driver; it waits in standby until `assign` is called.

        Args:
            home: A directory of its own.
            cores: Of the local master.
            artifact: The job's script.
            environment: Further variables.
            master: Another master than a local one.
            conf: Further settings.
        """
        home.mkdir(parents=True)
        build_if_missing(ARCHIVE)
        settings = {**DEFAULT_SETTINGS, **REQUIRED_SETTINGS, **LOCAL_SETTINGS, **ARCHIVE.settings()}
        settings["spark.driver.memory"] = "512m"
        settings["spark.sql.shuffle.partitions"] = "2"
        settings["spark.local.dir"] = str(home / "spark")
        settings["spark.sql.warehouse.dir"] = str(home / "warehouse")
        settings |= conf or {}
        (home / "tmp").mkdir()
        settings["spark.driver.extraJavaOptions"] += f' -Djava.io.tmpdir="{home / "tmp"}"'
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", master or f"local[{cores},4]"]
        for key, value in without_switched_off(settings, environment or {}).items():
            command += ["--conf", f"{key}={value}"]
        command.append(str(DRIVER_PROGRAM))
        variables = {
            **os.environ,
            "PYTHONPATH": str(IMPORT_PATH),
            "PYTHONSAFEPATH": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "KEYSCALE_WORK_DIR": str(home / "work"),
            "TMPDIR": str(home / "tmp"),
            "KEYSCALE_ASSIGNMENT_FILE": str(home / "assignment.json"),
            "KEYSCALE_ARTIFACT_FILE": str(artifact),
            **(environment or {}),
        }
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT, cwd=home, start_new_session=True
            )
        return cls(home, process)

    def assign(self, assignment: Assignment) -> None:
        temporary = self.home / "assignment.writing"
        temporary.write_text(assignment.model_dump_json())
        temporary.rename(self.home / "assignment.json")

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    @property
    def _control(self) -> Path:
        return self.home / "assignment.control"

    def heartbeat(self) -> Heartbeat | None:
        path = self._control / "heartbeat.json"
        return Heartbeat.model_validate_json(path.read_bytes()) if path.exists() else None

    def checkpoints(self) -> list[CheckpointReport]:
        """The last report of each checkpoint, by number."""
        paths = sorted((self._control / "checkpoints").glob("*.json"), key=lambda path: int(path.stem))
        return [CheckpointReport.model_validate_json(path.read_bytes()) for path in paths]

    def command(self, command: Command) -> None:
        path = self._control / "commands" / f"{command.id}.writing"
        path.write_text(command.model_dump_json())
        path.rename(path.with_suffix(".json"))

    def result(self, command_id: str, timeout: float = 240) -> CommandResult:
        path = self._control / "results" / f"{command_id}.json"
        self.wait_for(path.exists, f"the result of {command_id}", timeout)
        return CommandResult.model_validate_json(path.read_bytes())

    def look(self, kind: DiagnosticKind) -> dict[str, str]:
        """Returns the parts of a diagnostic."""
        wanted = DiagnosticCommand(id=f"look-{kind}", kind=kind)
        unfinished = self._control / f"{wanted.id}.json"
        unfinished.write_text(wanted.model_dump_json())
        unfinished.rename(self._control / "requests" / unfinished.name)
        answer = self._control / "diagnostics" / unfinished.name
        self.wait_for(answer.exists, "the diagnostic")
        return {part.name: part.text for part in DiagnosticReport.model_validate_json(answer.read_bytes()).parts}

    def wait_for(self, condition: Any, what: str, timeout: float = 240) -> Any:
        """Wait while the driver lives; its log's end is shown when it dies first."""

        def observe() -> Any:
            seen = condition()
            assert seen or self.process.poll() is None, f"the driver ended before {what}:\n{self.log[-6000:]}"
            return seen

        try:
            return wait_until(observe, timeout, what=what, poll=0.1)
        except AssertionError as error:
            error.add_note(self.log[-6000:])
            raise

    def wait_for_exit(self, timeout: float = 240) -> int:
        return self.process.wait(timeout)

    def kill(self, victim: Literal["jvm", "python", "all"] = "all") -> None:
        """SIGKILL the JVM, the Python process of the driver, or everything at once; wait until all have ended."""
        family = self.family()
        driver = [member for member in family if _runs_driver(member)]
        victims = {"jvm": driver[:1], "python": driver[1:2], "all": family}[victim]
        assert victims, "nothing is left to be killed"
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker may have ended meanwhile, or with its parent
                process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, f"left over: {alive}"

    def family(self) -> list[psutil.Process]:
        """The JVM first, then what it has started."""
        jvm = psutil.Process(self.process.pid)
        return [jvm, *jvm.children(recursive=True)]

    def end(self) -> None:
        """Make sure that nothing is left, whatever the test did."""
        if self.process.poll() is None:
            self.kill()


def _runs_driver(process: psutil.Process) -> bool:
    """Whether a process is the driver's JVM or its Python process, which Spark starts with all links resolved."""
    return any(Path(part).resolve() == DRIVER_PROGRAM.resolve() for part in command_line(process) if part[:1] == "/")


def command_line(process: psutil.Process) -> list[str]:
    """How a process was started; empty if it has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@dataclass(slots=True)
class ChainInput:
    """Input files for the chain job, a batch each, and what must come out of them."""

    directory: Path
    expected: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def write(cls, directory: Path, seed: int, files: int, records: int) -> ChainInput:
        """Write files of records over a few keys; one record in ten is delivered twice."""
        directory.mkdir(parents=True)
        history = random.Random(seed)
        made = cls(directory)
        links: dict[str, str] = defaultdict(str)
        counts: dict[str, int] = defaultdict(int)
        delivered: list[dict[str, Any]] = []
        for number in range(files):
            lines = []
            for _ in range(records):
                if delivered and history.random() < 0.1:
                    lines.append(history.choice(delivered))
                    continue
                key = f"k{history.randrange(7)}"
                counts[key] += 1
                record = {"key": key, "sequence": counts[key], "nonce": f"{seed}-{len(delivered)}"}
                links[key] = hashlib.sha256(f"{links[key]}|{record['sequence']}|{record['nonce']}".encode()).hexdigest()
                made.expected.append({**record, "count": counts[key], "link": links[key]})
                delivered.append(record)
                lines.append(record)
            path = directory / f"{number:04}.json"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
        return made


def sink_rows(directory: Path) -> list[dict[str, Any]]:
    """All that a reader of the sink sees, a batch after the other."""
    return [
        row
        for batch in sorted(directory.glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch=")))
        for file in sorted(batch.glob("part-*"))
        for row in rows_of(file)
    ]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file, Parquet or JSON by line."""
    if file.suffix == ".parquet":
        return cast("list[dict[str, Any]]", pq.ParquetFile(file).read().to_pylist())
    return [json.loads(line) for line in file.read_text().splitlines()]


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["key"], row["sequence"], row["nonce"]))


@dataclass(slots=True)
class ChainJob:
    """Everything of one job under test: its input, its output, its store, its attempts.

    `format` is that of the output: Parquet is written by the subtasks, JSON by Spark.
    """

    home: Path
    input: ChainInput
    parallelism: int = 2
    checkpoints: CheckpointSettings = field(default_factory=lambda: CheckpointSettings(interval_ms=1000))
    restart: RestartStrategy | None = None
    store_url: str | None = None
    format: Literal["json", "parquet"] = "parquet"

    @property
    def output(self) -> Path:
        return self.home / "out"

    @property
    def store(self) -> Path:
        return self.home / "store"

    def assignment(
        self,
        attempt: int,
        *,
        restore_from: str | None = None,
        parallelism: int | None = None,
        next_checkpoint_id: int = 1,
    ) -> Assignment:
        return new_assignment(
            job_id="chain",
            job_name="chain",
            attempt=attempt,
            parallelism=parallelism or self.parallelism,
            max_parallelism=16,
            artifact_filename="chain_job.py",
            artifact_sha256=hashlib.sha256(CHAIN_JOB.read_bytes()).hexdigest(),
            parameters={
                "input": str(self.input.directory),
                "output": str(self.output),
                "format": self.format,
                "fault": str(self.home / "fault"),
            },
            restart=self.restart,
            store_url=self.store_url or self.store.as_uri(),
            restore_from=restore_from,
            next_checkpoint_id=next_checkpoint_id,
            checkpoints=self.checkpoints,
        )

    def is_complete(self) -> bool:
        return len(sink_rows(self.output)) >= len(self.input.expected)

    def check_output(self) -> None:
        """The sink holds exactly what it must, not a record more or less, with every chain unbroken."""
        assert sorted_rows(sink_rows(self.output)) == sorted_rows(self.input.expected)
