"""Runs a program up to its first record: `./keyscale check FILE`.

It needs no job. It is how a program is tried before it is uploaded: declarations, types, parameters and the states that
its functions open. Spark runs on this host, and nothing is stored.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from keyscale.api.artifacts.declared_program import check_answer
from keyscale.api.cli.check_output import show_check
from keyscale.api.cli.output import console_for
from keyscale.api.cli.setting_options import Pair
from keyscale.api.launching.driver_command import loader_command, loader_environment
from keyscale.api.libraries.artifact_inspector import ENDINGS
from keyscale.api.libraries.library_cache import LibraryCache, PlacedLibraries
from keyscale.api.settings import Settings
from keyscale.api.shapes import FailureAnswer
from keyscale.jobs.protocol.messages import LibraryFile
from keyscale.jobs.protocol.program import ANSWER_FILE, QUESTION_FILE, ProgramAnswer, ProgramQuestion

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {ending: kind for kind, ending in ENDINGS.items()}
_LOG_LINES = 30

file_type = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("check")
@click.argument("program", metavar="FILE", type=file_type)
@click.option("--parameter", "-P", "parameters", type=Pair(), multiple=True, help="A parameter, key=value.")
@click.option("--library", "libraries", type=file_type, multiple=True, help="A .py, .zip, .whl or .jar file.")
@click.option("--parallelism", default=1, show_default=True, type=click.IntRange(1), help="The number of subtasks.")
@click.option(
    "--max-parallelism", default=128, show_default=True, type=click.IntRange(1, 32768), help="Number of key groups."
)
def check(
    program: Path,
    parameters: Sequence[tuple[str, str]],
    libraries: Sequence[Path],
    parallelism: int,
    max_parallelism: int,
) -> int:
    """Check a program without a job and without a start.

    It runs up to env.execute(), and its functions are opened. Secrets come from the environment, as for a control
    plane.
    """
    if program.suffix not in {".py", ".zip"}:
        raise click.UsageError("a program is a .py or a .zip file")
    question = ProgramQuestion(program.name, dict(parameters), max_parallelism, parallelism)
    answer, log = load(program, question, libraries)
    console = console_for(sys.stdout)
    if answer is None:
        console.print(log, markup=False, soft_wrap=True)
        console.print("the program ended without a declaration", markup=False)
        return 1
    failure = None if answer.failure is None else FailureAnswer.model_validate(answer.failure)
    shown = check_answer(answer.declaration, failure)
    show_check(console, shown.model_dump(mode="json"))
    return 0 if shown.valid else 1


def load(program: Path, question: ProgramQuestion, libraries: Sequence[Path]) -> tuple[ProgramAnswer | None, str]:
    """Loads a program in a process of its own.

    Returns:
        Its answer, None if the process ended without one; and the last lines that the process wrote.
    """
    settings = Settings.from_environment()
    with tempfile.TemporaryDirectory(prefix="keyscale-check-") as directory:
        work = Path(directory)
        (work / QUESTION_FILE).write_bytes(msgspec.json.encode(question))
        (work / question.artifact_file).write_bytes(program.read_bytes())
        placed = place_libraries(libraries, work / "libraries")
        command = loader_command(settings, {}, work, placed)
        environment = loader_environment(work, os.environ, settings.job_secrets.environment_of(None), libraries=placed)
        log = work / "log"
        with log.open("wb") as out:
            subprocess.run(command, env=environment, cwd=work, stdout=out, stderr=out, check=False)  # noqa: S603 - Spark
        said = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        try:
            return msgspec.json.decode((work / ANSWER_FILE).read_bytes(), type=ProgramAnswer), said
        except (FileNotFoundError, msgspec.MsgspecError):
            return None, said


def place_libraries(files: Sequence[Path], directory: Path) -> PlacedLibraries:
    """Returns libraries as a job would find them on a host.

    Raises:
        UsageError: A file is not a library.
    """
    contents: dict[str, bytes] = {}
    known: list[LibraryFile] = []
    for file in files:
        if file.suffix not in KINDS:
            raise click.UsageError(f"{file.name} is not a .py, .zip, .whl or .jar file")
        content = file.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        contents[sha256] = content
        known.append(LibraryFile.model_validate({"filename": file.name, "sha256": sha256, "kind": KINDS[file.suffix]}))
    return LibraryCache(directory, lambda sha256: [contents[sha256]]).place(known)


def main() -> int:
    """Runs the command; returns its exit code."""
    result = check.main(prog_name="keyscale check", standalone_mode=False)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
