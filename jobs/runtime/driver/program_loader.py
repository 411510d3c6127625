r"""The `spark-submit` program that loads a job's declaration.

It processes and stores nothing.

    KEYSCALE_WORK_DIR=<directory> spark-submit --master local[1] ... program_loader.py

The directory holds a `ProgramQuestion` and the program's file; the loader writes a `ProgramAnswer` there. The script
runs as it would in a driver, up to `env.execute()`, where it ends. Then the function of every operator is opened, as in
a subtask's first batch, on empty state, so that it declares its states, and closed again.

The environment holds only the secrets that the job names. It holds no token, no object store credentials and no address
of the control plane.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import SparkSession

from keyscale.identifiers import Attempt, JobId, SubtaskIndex
from keyscale.jobs.operators.failures import TaskOrigin, origin_of, typed_failure, with_origin
from keyscale.jobs.operators.operator_contract import SubtaskProgress, run_subtask
from keyscale.jobs.protocol.program import (
    ANSWER_FILE,
    QUESTION_FILE,
    DeclaredSink,
    DeclaredSource,
    ProgramAnswer,
    ProgramDeclaration,
    ProgramQuestion,
)
from keyscale.jobs.runtime.driver.main import end_with_parent
from keyscale.jobs.runtime.driver.run_outcome import failure_of
from keyscale.jobs.runtime.executor.task import subtask_info
from keyscale.jobs.runtime.preparation.artifact import LocalArtifact
from keyscale.jobs.runtime.preparation.declaration import declare
from keyscale.jobs.spark_internals.function_copies import worker_copy
from keyscale.jobs.spark_internals.source_inputs import kinds_of
from keyscale.log_lines import configure_logging
from keyscale.state.doors.commits import OperatorDeclaration
from keyscale.state.doors.keyed import BatchClock, MemoryState, OperatorStateBackend
from keyscale.state.doors.planning import DeclaredOperator
from keyscale.state.doors.subtasks import SubtaskSpec
from keyscale.state.doors.values import HashId

if TYPE_CHECKING:
    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.graph.topology import Topology

logger = logging.getLogger(__name__)

MEMORY_BYTES_MAX = 8 << 30
"""Maximum address space of the script's process. Java's heap is in another process, with its own limit."""


def main() -> int:
    """Loads the program and writes the answer."""
    configure_logging(os.environ, "%(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    directory = Path(os.environ["KEYSCALE_WORK_DIR"])
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    question = msgspec.json.decode((directory / QUESTION_FILE).read_bytes(), type=ProgramQuestion)
    try:
        answer = ProgramAnswer(load(SparkSession.builder.getOrCreate(), question, directory))
    except BaseException as error:  # noqa: BLE001 - a script may raise anything
        answer = ProgramAnswer(failure=failure_of(typed_failure(error)).model_dump(mode="json"))
    written = directory / f"{ANSWER_FILE}.new"
    written.write_bytes(msgspec.json.encode(answer))
    written.replace(directory / ANSWER_FILE)
    return 0


def load(spark: SparkSession, question: ProgramQuestion, directory: Path) -> ProgramDeclaration:
    """Runs the script up to `env.execute()` and returns what it declares.

    Raises:
        KeyscaleError: The script cannot run, raised, or declares no job that can run.
    """
    topology, restart = declare(spark, LocalArtifact(directory / question.artifact_file), question.parameters)
    return ProgramDeclaration(
        operators=tuple(declared_operators(topology, question)),
        sources=tuple(DeclaredSource(node.uid, kinds_of(node.frame)) for node in topology.sources),
        sinks=tuple(DeclaredSink(node.uid, type(node.sink).__name__) for node in topology.sinks),
        batch_interval_ms=topology.batch_interval_ms,
        restart=None if restart is None else restart.model_dump(mode="json"),
        operator_kinds={node.uid: type(node.logic).__name__ for node in topology.operators},
    )


def declared_operators(topology: Topology, question: ProgramQuestion) -> list[DeclaredOperator]:
    """Opens each operator on empty state; returns its declaration.

    Raises:
        KeyscaleError: An operator cannot be opened.
    """
    return [_operator(node, question) for node in topology.operators]


def _operator(node: OperatorNode, question: ProgramQuestion) -> DeclaredOperator:
    keyed = MemoryState(node.key_schema, BatchClock()).backend
    operator_state = OperatorStateBackend()
    spec = SubtaskSpec(
        job_id=JobId("plan"),
        operator_uid=node.uid,
        index=SubtaskIndex(0),
        parallelism=question.parallelism,
        max_parallelism=question.max_parallelism,
        hash_id=HashId.SPARK,
        key_schema=node.key_schema,
        attempt=Attempt(1),
    )
    info = subtask_info(node, spec)
    try:
        for _ in run_subtask(
            worker_copy(node.logic), keyed, info, [], progress=SubtaskProgress(), operator_state=operator_state
        ):
            pass
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        failure = typed_failure(error)
        raise with_origin(failure, TaskOrigin(node.uid, None, origin_of(failure).user_traceback)) from None
    return DeclaredOperator(
        node.uid,
        OperatorDeclaration(tuple((field.name, str(field.type)) for field in node.key_schema), keyed.schema),
        operator_state.snapshot().states,
        {name: ttl.duration_ms for name, ttl in keyed.ttls.items()},
    )


if __name__ == "__main__":
    # Python puts a program's own directory first on the path: the user's modules may have the names of Keyscale's
    # modules.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    sys.exit(main())
