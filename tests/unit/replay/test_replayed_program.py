"""The program of a replay is unpacked, so that a debugger can show its lines."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keyscale.identifiers import Attempt, JobId
from keyscale.jobs.runtime.errors import ArtifactUnsupportedError
from keyscale.replay.replayed_program import Definition, Program
from keyscale.state.documents.job_record import JobRecord, RecordedArtifact, write_job_record
from keyscale.state.layout import Layout
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore

JOB = JobId("job")


def zipped(file: Path, **modules: str) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, source in modules.items():
            archive.writestr(f"{name}.py", source)
    return file


def test_a_zip_and_its_libraries_are_directories_of_modules(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "job.zip", main="1", helper="2")
    wheel, jar, module = zipped(tmp_path / "tools.whl", tools="3"), tmp_path / "codec.jar", tmp_path / "more.py"
    jar.touch()
    module.write_text("4")
    program = Program.placed(archive, [wheel, jar, module], tmp_path / "placed")
    assert (program.script.name, program.script.read_text(), program.jars) == ("main.py", "1", (jar,))
    assert [sorted(file.name for file in each.iterdir()) for each in program.python_path] == [
        ["helper.py", "main.py"],
        ["tools.py"],
        ["more.py"],
    ]


def test_a_script_stays_where_its_breakpoints_are(tmp_path: Path) -> None:
    assert Program.placed(tmp_path / "job.py", [], tmp_path / "placed") == Program(tmp_path / "job.py")


@pytest.mark.parametrize("name", ["empty.zip", "no.zip", "job.txt"])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("no zip")
    if name == "empty.zip":
        zipped(file, helper="1")
    with pytest.raises(ArtifactUnsupportedError):
        Program.placed(file, [], tmp_path / "placed")


def test_the_definition_of_an_attempt_is_beside_its_state(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    contents = {"a": b"program", "b": b"library"}
    specification: dict[str, Any] = {"artifact_id": "b", "libraries": ["a"], "parameters": {"input": "/in"}}
    specification["spark_conf"] = {"spark.x": "1"}
    artifacts = tuple(recorded(each, content) for each, content in contents.items())
    for artifact, content in zip(artifacts, contents.values(), strict=True):
        store.put(Layout(JOB).recorded_artifact(artifact.sha256), content)
    write_job_record(store, record(specification, artifacts))
    definition = Definition.of_record(store, JOB, Attempt(3), tmp_path)
    settings = (definition.parameters, definition.spark_conf, definition.revision)
    assert settings == ({"input": "/in"}, {"spark.x": "1"}, 5)
    assert Path(definition.file).read_bytes() == b"library"
    assert [each.rpartition("/")[2] for each in definition.libraries] == ["a.py"]
    with pytest.raises(ObjectNotFoundError):
        Definition.of_record(store, JOB, Attempt(2), tmp_path)


def test_two_libraries_with_one_name_are_both_there(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    contents = {"job": b"program", "a": b"one", "b": b"two"}
    artifacts = tuple(recorded(each, content, "same.py") for each, content in contents.items())
    for artifact, content in zip(artifacts, contents.values(), strict=True):
        store.put(Layout(JOB).recorded_artifact(artifact.sha256), content)
    write_job_record(store, record({"artifact_id": "job", "libraries": ["a", "b"]}, artifacts))
    definition = Definition.of_record(store, JOB, Attempt(3), tmp_path)
    program = Program.placed(Path(definition.file), [Path(each) for each in definition.libraries], tmp_path)
    assert program.script.read_bytes() == b"program"
    assert [(each / "same.py").read_bytes() for each in program.python_path] == [b"one", b"two"]


def recorded(name: str, content: bytes, filename: str | None = None) -> RecordedArtifact:
    return RecordedArtifact(
        name, name, 1, filename or f"{name}.py", "PYTHON", hashlib.sha256(content).hexdigest(), len(content), 1
    )


def record(specification: dict[str, Any], artifacts: tuple[RecordedArtifact, ...]) -> JobRecord:
    return JobRecord(
        job_id=JOB,
        attempt=Attempt(3),
        continues=Attempt(0),
        name="job",
        labels={},
        max_parallelism=16,
        hash_id="spark",
        created_at_ms=1,
        revision=5,
        revised_at_ms=1,
        revised_by=None,
        message=None,
        specification=specification,
        artifacts=artifacts,
    )
