"""The process of a replay: `python -m keyscale.replay.replay_process REQUEST`.

The request is a file with a `ReplayRequest` as JSON. Its directory takes all files of the replay, and is removed at the
end. The process runs in a terminal: functions may call `breakpoint()`. Its exit code is 0 if the replay gives what the
batch has committed, or does not fail; 4 if it differs; and 1 if it fails.
"""

from __future__ import annotations

import json
import logging
import os
import pdb  # noqa: T100 - it is the user's
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keyscale.errors import KeyscaleError
from keyscale.identifiers import JobId
from keyscale.installation import IMPORT_PATH
from keyscale.jobs.operators.failures import origin_of, typed_failure
from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.jvm_output import without_greeting
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.protocol.spark_switches import without_switched_off
from keyscale.jobs.runtime.preparation.artifact import LocalArtifact
from keyscale.jobs.runtime.preparation.declaration import declare
from keyscale.printable import printable
from keyscale.state.doors.objects import ObjectNotFoundError, open_store
from keyscale.state.doors.reading import RecordedBatch

from .debugger import Debugger, failed_input, is_left
from .errors import ReplayProgramGoneError, ReplayRecordsGoneError
from .oldest_records import oldest_with_records
from .recorded_input import read_records
from .replayed_graph import replay_graph
from .replayed_key import ReplayedKey
from .replayed_operators import ReplayedOperators
from .replayed_program import Definition, Program
from .report import Report, compare_sinks, heading

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_SAME, EXIT_FAILED, EXIT_DIFFERS = 0, 1, 4


class ReplayRequest(msgspec.Struct, frozen=True):
    """What is replayed, and how.

    Attributes:
        store_url: The job's object store.
        job_id: The job.
        batch_id: The batch; None: the batch after the last commit.
        definition: What the job runs; None: the record beside the state says it.
        program: Another program; None: the program of the definition.
        parameters: Parameters in the place of those of the definition, or beside them.
        key: The only key to replay.
        operator: The operator of the key; None: the only operator.
        breakpoints: Lines and functions of the program.
        post_mortem: Whether a debugger opens where the batch fails.
        rows_max: How many rows and differences are shown.
        as_json: Whether the report is JSON.
    """

    store_url: str
    job_id: str
    batch_id: int | None = None
    definition: Definition | None = None
    program: str | None = None
    parameters: dict[str, str] = {}
    key: str | None = None
    operator: str | None = None
    breakpoints: tuple[str, ...] = ()
    post_mortem: bool = False
    rows_max: int = 20
    as_json: bool = False


def main() -> int:
    """Carries out the request; returns the exit code."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    file = Path(sys.argv[1])
    request = msgspec.json.decode(file.read_bytes(), type=ReplayRequest)
    try:
        report = replay(request, file.parent)
    except (KeyscaleError, PySparkException) as failure:
        if not is_left(failure):
            _show_failure(typed_failure(failure), request)
        return EXIT_FAILED
    finally:
        shutil.rmtree(file.parent, ignore_errors=True)
    if request.as_json:
        sys.stdout.write(json.dumps(report.as_json(), ensure_ascii=False, indent=2) + "\n")
    else:
        _say(request, *report.lines(request.rows_max))
    return EXIT_DIFFERS if report.batch.committed is not None and report.differs else EXIT_SAME


def replay(request: ReplayRequest, directory: Path) -> Report:
    """Runs a recorded batch again in this process.

    Args:
        request: The request.
        directory: An existing directory for all files.

    Raises:
        KeyscaleError: The batch cannot be replayed, or it failed.
    """
    job_id = JobId(request.job_id)
    store = open_store(request.store_url)
    batch = RecordedBatch.of_job(store, job_id, request.batch_id)
    _say(request, heading(batch))
    definition = request.definition or _recorded(request, batch, directory)
    file = Path(definition.file if request.program is None else request.program).absolute()
    program = Program.placed(file, [Path(each) for each in definition.libraries], directory)
    of_revision = (
        "" if definition.revision is None or request.program is not None else f", revision {definition.revision}"
    )
    _say(request, f"program {program.script}{of_revision}")
    spark = _session(program, definition.spark_conf, batch.parallelism, directory)
    try:
        topology, _ = declare(spark, LocalArtifact(program.script), {**definition.parameters, **request.parameters})
        only = None if request.key is None else ReplayedKey.of_text(topology, batch, request.key, request.operator)
        operators = ReplayedOperators(topology, job_id, batch, directory, only)
        debugger = Debugger()
        debugger.stop_at(request.breakpoints, program.script)
        try:
            sources, records = read_records(spark, topology, batch, directory)
        except ReplayRecordsGoneError as error:
            oldest = oldest_with_records(spark, topology, store, job_id, batch.batch_id + 1)
            raise _naming(error, oldest) from error
        count = 0 if records is None else records.count()
        tables = debugger.run_until_break(
            lambda: replay_graph(spark, topology, batch, operators, sources=sources, records=records)
        )
        last = {node.uid for sink in topology.sinks for node in topology.operators_before(sink.input)}
        return Report(
            batch,
            str(program.script),
            count,
            operators.changes,
            sum(number for uid, number in operators.output_records.items() if uid in last),
            operators.differences,
            compare_sinks(topology, batch, tables, is_whole=only is None),
            request.key,
            operators.key_records,
        )
    finally:
        spark.stop()


def _naming(error: ReplayRecordsGoneError, oldest: int | None) -> ReplayRecordsGoneError:
    helps = "no newer batch has its records" if oldest is None else f"the oldest batch with its records is {oldest}"
    return ReplayRecordsGoneError(f"{error}; {helps}")


def _recorded(request: ReplayRequest, batch: RecordedBatch, directory: Path) -> Definition:
    """Returns the definition beside the state, or the given program alone."""
    try:
        return Definition.of_record(batch.before.store, JobId(request.job_id), batch.attempt, directory)
    except ObjectNotFoundError:
        if request.program is None:
            raise ReplayProgramGoneError(f"the program of attempt {batch.attempt} is not beside the state") from None
        return Definition(request.program)


def _session(program: Program, spark_conf: Mapping[str, str], parallelism: int, directory: Path) -> SparkSession:
    """Starts Spark, with as many tasks at once as the job had."""
    sys.path[:0] = map(str, program.python_path)
    python_path = (IMPORT_PATH, *program.python_path)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (*map(str, python_path), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **LOCAL_SETTINGS,
        **spark_conf,
        **REQUIRED_SETTINGS,
        "spark.authenticate": "true",
        "spark.log.level": "ERROR",  # the terminal is the user's
        "spark.app.name": "keyscale-replay",
        "spark.jars": ",".join(map(str, program.jars)),
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[{parallelism + 1}]")
    for name, value in without_switched_off(settings).items():
        if value:
            builder = builder.config(name, value)
    with without_greeting():
        return builder.getOrCreate()


def _show_failure(error: KeyscaleError, request: ReplayRequest) -> None:
    """Prints an error with its traceback and its record."""
    cause = error.__context__
    called_with = None if cause is None else failed_input(cause.__traceback__)
    origin = origin_of(error)
    lines = [f"error {error.code}: {error}"]
    if origin.operator_uid is not None:
        lines.append(f"in operator {origin.operator_uid}, subtask {origin.subtask}")
    lines += [each for each in (origin.user_traceback, called_with, error.advice) if each]
    sys.stderr.write(printable("\n".join(lines)) + "\n")
    if request.post_mortem and cause is not None and origin.operator_uid is not None:
        pdb.post_mortem(cause.__traceback__)


def _say(request: ReplayRequest, *lines: str) -> None:
    if not request.as_json:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
