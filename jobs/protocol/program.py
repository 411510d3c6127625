"""The question to a program loader, and its answer.

Both are files in the loader's directory.

A program loader is a separate process, `keyscale.jobs.runtime.driver.program_loader`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keyscale.state.doors.planning import DeclaredOperator

QUESTION_FILE = "program.json"
ANSWER_FILE = "declaration.json"


class ProgramQuestion(msgspec.Struct, frozen=True):
    """The program to load.

    Attributes:
        artifact_file: The program's file, in the loader's directory.
        parameters: The parameters that the script reads; a secret is {"secret": name}.
        max_parallelism: The job's number of key groups.
        parallelism: The number of subtasks that the program would have.
    """

    artifact_file: str
    parameters: dict[str, Any]
    max_parallelism: int
    parallelism: int


class DeclaredSource(msgspec.Struct, frozen=True):
    """A source of a program.

    It has a uid, and the kinds of its inputs, such as FileSource or kafka.
    """

    uid: str
    kinds: tuple[str, ...]


class DeclaredSink(msgspec.Struct, frozen=True):
    """A sink of a program: its uid and its class name."""

    uid: str
    kind: str


class ProgramDeclaration(msgspec.Struct, frozen=True):
    """Everything that a program declares before it processes a record.

    Attributes:
        operators: Its operators, with the states and timers that their functions declare when they are opened.
        sources: Its sources.
        sinks: Its sinks.
        operator_kinds: The kind of each operator by uid, such as Deduplicate.
        batch_interval_ms: The minimum time between two batches that the script sets.
        restart: The restart strategy that the script sets, as JSON; None if it sets no strategy.
    """

    operators: tuple[DeclaredOperator, ...]
    sources: tuple[DeclaredSource, ...]
    sinks: tuple[DeclaredSink, ...]
    batch_interval_ms: int = 0
    restart: dict[str, Any] | None = None
    operator_kinds: dict[str, str] = {}


class ProgramAnswer(msgspec.Struct, frozen=True):
    """The answer of a loader.

    It is the declaration, or the failure that prevented it, as JSON of a `Failure`.
    """

    declaration: ProgramDeclaration | None = None
    failure: dict[str, Any] | None = None
