"""`./keyscale check FILE`: its words about a program that can run, and about a wrong program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec
import pytest

from keyscale.api.settings import Settings
from keyscale.deploy import program_check
from keyscale.deploy.program_check import check, place_libraries
from keyscale.installation import IMPORT_PATH
from keyscale.jobs.protocol.program import (
    ANSWER_FILE,
    QUESTION_FILE,
    ProgramAnswer,
    ProgramDeclaration,
    ProgramQuestion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROGRAM = """
import pyarrow as pa
from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", TYPE))

    def process_element(self, row, context):
        yield {"user": row.user}

env = StreamEnvironment.current()
views = env.stream(env.spark.readStream.schema("user string").json(env.parameters["input"]))
counts = views.key_by("user").process(Count(), output={"user": "string"}).uid("count")
counts.sink_to(FileSink("out")).uid("files")
env.execute()
"""


def test_libraries_are_found_as_a_job_finds_them(tmp_path: Path) -> None:
    (tmp_path / "pricing.py").write_text("RATE = 3\n")
    placed = place_libraries([tmp_path / "pricing.py"], tmp_path / "libraries")
    found = subprocess.run(
        [sys.executable, "-c", "import pricing; print(pricing.RATE)"],
        env={"PYTHONPATH": ":".join(map(str, placed.python_path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "3\n"
    with pytest.raises(click.UsageError, match=r"notes\.txt is not a \.py"):
        place_libraries([tmp_path / "notes.txt"], tmp_path / "libraries")


def test_a_file_that_is_no_program_is_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "visits.md").touch()
    with pytest.raises(click.UsageError, match=r"a program is a \.py or a \.zip file"):
        check.main([str(tmp_path / "visits.md")], standalone_mode=False)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (ProgramAnswer(failure={"code": "BROKEN", "message": "it broke", "domain": "user"}), 1, "BROKEN: it broke"),
        (ProgramAnswer(ProgramDeclaration((), (), ())), 0, "the program can be started"),
        (None, 1, "line 69\nthe program ended without a declaration"),
        (b"{", 1, "the program ended without a declaration"),
    ],
)
def test_the_loader_gets_the_question_and_its_answer_is_shown(  # noqa: PLR0917 - a table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: ProgramAnswer | bytes | None,
    code: int,
    said: str,
) -> None:
    (tmp_path / "views.py").write_text("the program")
    (tmp_path / "pricing.py").write_text("RATE = 3\n")
    works: list[Path] = []

    def load(_: object, *, env: dict[str, str], cwd: Path, stdout: Any, **__: object) -> None:
        works.append(cwd)
        question = msgspec.json.decode((cwd / QUESTION_FILE).read_bytes(), type=ProgramQuestion)
        assert question == ProgramQuestion("views.py", {"in": "/a"}, max_parallelism=64, parallelism=3)
        assert (cwd / "views.py").read_text() == "the program"
        assert any((Path(folder) / "pricing.py").is_file() for folder in env["PYTHONPATH"].split(":"))
        stdout.write("".join(f"line {number}\n" for number in range(70)).encode())
        if answer is not None:
            content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
            (cwd / ANSWER_FILE).write_bytes(content)

    monkeypatch.setattr(program_check, "subprocess", SimpleNamespace(run=load))
    options = ["-P", "in=/a", "--parallelism", "3", "--max-parallelism", "64"]
    arguments = [str(tmp_path / "views.py"), "--library", str(tmp_path / "pricing.py"), *options]
    assert check.main(arguments, standalone_mode=False) == code
    printed = capsys.readouterr().out
    assert said in printed
    assert ("line 40\n" in printed, "line 39\n" in printed) == (not isinstance(answer, ProgramAnswer), False)
    assert not works[0].exists()


def test_a_program_gets_the_secrets_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "views.py").touch()
    given: list[dict[str, str]] = []
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_API_KEY", "value-of-it")
    monkeypatch.setattr(program_check, "subprocess", SimpleNamespace(run=lambda _, *, env, **__: given.append(env)))
    check.main([str(tmp_path / "views.py")], standalone_mode=False)
    assert [env.get("KEYSCALE_JOB_SECRET_API_KEY") for env in given] == ["value-of-it"]


def test_each_library_is_placed_as_what_it_is_with_its_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"rates.zip": "ZIP", "of_java.jar": "JAR", "tools-1.0-py3-none-any.whl": "WHEEL", "one.py": "PYTHON"}
    made: list[Any] = []

    class Cache:
        def __init__(self, directory: Path, read: Callable[[str], Iterable[bytes]]) -> None:
            self._directory, self._read = directory, read

        def place(self, libraries: list[Any]) -> str:
            made.append((self._directory, [(each.filename, each.kind, *self._read(each.sha256)) for each in libraries]))
            return "placed"

    for name in kinds:
        (tmp_path / name).write_bytes(f"the bytes of {name}".encode())
    monkeypatch.setattr(program_check, "LibraryCache", Cache)
    assert place_libraries([tmp_path / name for name in kinds], tmp_path / "libraries") == cast("Any", "placed")
    placed = [(name, kind, f"the bytes of {name}".encode()) for name, kind in kinds.items()]
    assert made == [(tmp_path / "libraries", placed)]


def test_what_a_program_writes_on_either_stream_is_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "views.py").write_bytes(b"the program")
    given: list[dict[str, Any]] = []
    commands: list[tuple[Any, ...]] = []
    environments: list[tuple[Any, ...]] = []

    def run(command: list[str], **options: Any) -> None:
        given.append({"command": command, **options})
        options["stderr"].write(b"before\nwrong \xff\n")

    def command(settings: Any, *rest: Any) -> list[str]:
        commands.append((type(settings), *rest))
        return ["spark-submit"]

    def environment(*rest: Any, **libraries: Any) -> dict[str, str]:
        environments.append((*rest, libraries))
        return {"PYTHONPATH": "here"}

    monkeypatch.setattr(program_check, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(program_check, "loader_command", command)
    monkeypatch.setattr(program_check, "loader_environment", environment)
    monkeypatch.setattr(program_check, "place_libraries", lambda files, directory: (files, directory.name))
    question = ProgramQuestion("views.py", {}, 64, 3)
    library = tmp_path / "one.py"
    assert program_check.load(tmp_path / "views.py", question, [library]) == (None, "before\nwrong \ufffd")
    [options] = given
    work, placed = options["cwd"], ([library], "libraries")
    assert options["stdout"] is options["stderr"]
    assert (options["command"], options["env"], options["check"]) == (["spark-submit"], {"PYTHONPATH": "here"}, False)
    assert commands == [(Settings, {}, work, placed)]
    [(of_work, of_process, _, libraries)] = environments
    assert (of_work, of_process is os.environ, libraries) == (work, True, {"libraries": placed})


@pytest.mark.parametrize(("result", "code"), [(1, 1), (0, 0), (None, 0)])
def test_the_command_ends_with_the_code_of_its_check(
    monkeypatch: pytest.MonkeyPatch, result: int | None, code: int
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(check, "main", lambda **options: given.append(options) or result)  # type: ignore[func-returns-value]
    assert program_check.main() == code
    assert given == [{"prog_name": "keyscale check", "standalone_mode": False}]


@pytest.mark.real
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("declared", "status", "said"),
    [
        ("pa.int64()", 0, "the program can be started"),
        ("int", 1, "STATE_DESCRIPTOR_INVALID: the type of state 'count' is declared as int; declare pa.int64()"),
    ],
)
def test_a_program_is_checked_in_spark_without_a_job(tmp_path: Path, declared: str, status: int, said: str) -> None:
    (tmp_path / "views.py").write_text(PROGRAM.replace("TYPE", declared))
    (tmp_path / "in").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "keyscale.deploy.program_check", "views.py", "-P", f"input={tmp_path / 'in'}"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(IMPORT_PATH), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr
    assert "/views.py" in done.stdout or status == 0
