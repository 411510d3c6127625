from __future__ import annotations

import io
import json
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import ArtifactInvalidError
from keyscale.api.libraries import artifact_inspection, artifact_inspector
from keyscale.api.libraries.artifact_inspection import inspect_artifact
from keyscale.api.libraries.artifact_inspector import (
    ENDINGS,
    SCRIPT_BYTES_MAX,
    ZIP_DEPTH_MAX,
    ZIP_UNPACKED_BYTES_MAX,
    ArtifactRefusedError,
    import_names,
    inspected,
)
from keyscale.vocabulary import ArtifactKind

SCRIPT = "print(1)\n"


def zipped(*entries: tuple[str, str | bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("main.py", SCRIPT), *entries):
            archive.writestr(name, content)
    return buffer


METADATA = "Name: Some.Package\nVersion: 1.2\nRequires-Python: >=3.9\nRequires-Dist: other>=1; extra == 'fast'\n"


def wheel(*entries: tuple[str, str | bytes], metadata: str = METADATA) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in (("some_package-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n"), *entries):
            archive.writestr(name, content)
        archive.writestr("some_package-1.2.dist-info/METADATA", metadata)
    return buffer


def refusal_of(content: io.BytesIO, filename: str) -> str:
    with pytest.raises(ArtifactInvalidError) as caught:
        inspect_artifact(content, filename)
    return caught.value.detail


def zip_of(**entries: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time of day: it is in names of tests
    return buffer.getvalue()


MAIN = zip_of(**{"main.py": SCRIPT})


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (b"def broken(:\n", ".py"),
        (b"", ".py"),
        (b" \n", ".py"),
        (b"\x00\x01\x02", ".py"),
        (b"\xff\xfe\x00binary", ".py"),
        (b"print(1)", ".txt"),
        (b"print(1)", ""),
        (b"print(1)", ".zip"),
        (MAIN, ".py"),
        (MAIN[:-8], ".zip"),
        (zip_of(**{"notes.txt": "x = 1\n"}), ".zip"),
        (zip_of(**{"x/__init__.py": ""}), ".whl"),
        (zip_of(**{"__main__.py": "def broken(:\n"}), ".zip"),
        (zip_of(**{"__main__.py": "", "../outside.py": ""}), ".zip"),
        (zip_of(**{"__main__.py": "", "/etc/passwd": ""}), ".zip"),
        (zip_of(**{"__main__.py": "", "a\\..\\..\\b.py": ""}), ".zip"),
        (zip_of(**{"__main__.py": "print(1)\n"}).replace(b"print(1)", b"print(2)"), ".zip"),
    ],
)
def test_a_file_that_is_not_a_valid_python_file_zip_or_wheel_is_refused(content: bytes, ending: str) -> None:
    with pytest.raises(ArtifactRefusedError):
        inspected(io.BytesIO(content), ending)


def test_a_script_that_takes_gigabytes_to_parse_is_refused_and_costs_this_process_nothing() -> None:
    content = io.BytesIO(b"a," * (SCRIPT_BYTES_MAX // 2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "to parse" in refusal_of(content, "job.py")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_long_script_of_ordinary_lines_is_accepted() -> None:
    line = b"def total(a, b):\n    return a + b\n"
    assert inspect_artifact(io.BytesIO(line * ((512 << 10) // len(line))), "job.py")[0] is ArtifactKind.PYTHON


def test_a_zip_that_unpacks_to_far_more_than_its_size_is_refused() -> None:
    assert "times its size" in refusal_of(zipped(("zeros", bytes(64 << 20))), "job.zip")


def test_a_zip_that_unpacks_to_more_than_a_gigabyte_is_refused_before_it_is_unpacked() -> None:
    content = bytearray(zipped(("data", b"x")).getvalue())
    at = content.rindex(b"PK\x01\x02") + 24  # the last entry's size, as the directory of the zip says it
    content[at : at + 4] = ZIP_UNPACKED_BYTES_MAX.to_bytes(4, "little")
    assert "unpacks to more than" in refusal_of(io.BytesIO(bytes(content)), "job.zip")


@pytest.mark.parametrize("name", ["d/" * 65 + "module.py", "d" * 1000 + ".py"])
def test_a_zip_that_cannot_be_unpacked_and_deleted_again_is_refused(name: str) -> None:
    assert "too many directories" in refusal_of(zipped((name, "")), "job.zip")


def test_a_zip_of_ordinary_text_may_have_any_ratio_while_it_is_small() -> None:
    assert inspect_artifact(zipped(("table.csv", "0,0,0\n" * 100_000)), "job.zip")[0] is ArtifactKind.ZIP


@pytest.mark.parametrize("entry", ["keyscale/__init__.py", "keyscale.py", "json.py", "json/__init__.pyc", "pyspark.py"])
def test_a_zip_with_a_module_named_like_ours_or_the_standard_librarys_is_refused(entry: str) -> None:
    name = entry.partition("/")[0].partition(".")[0]
    assert f"a module `{name}`" in refusal_of(zipped((entry, "")), "job.zip")


@pytest.mark.parametrize("entry", ["jobs/__init__.py", "mine/json.py", "json/table.csv", "calendar/2026.txt"])
def test_a_zip_may_use_any_other_name(entry: str) -> None:
    assert inspect_artifact(zipped((entry, "")), "job.zip")[0] is ArtifactKind.ZIP


def test_a_wheel_says_what_it_is_what_it_needs_and_what_can_be_imported() -> None:
    content = wheel(
        ("some/package/__init__.py", ""),
        ("some/package/inner/__init__.py", ""),
        ("some/alone.py", ""),
        ("_fast.cpython-311-x86_64-linux-gnu.so", b""),
        ("some_package-1.2.data/purelib/extra.py", ""),
        ("some_package-1.2.data/scripts/run.py", ""),
    )
    kind, contents = inspect_artifact(content, "some_package-1.2-py3-none-any.whl")
    assert kind is ArtifactKind.WHEEL
    assert contents.modules == ("_fast", "extra", "some.alone", "some.package")
    assert (contents.distribution, contents.version, contents.requires_python) == ("Some.Package", "1.2", ">=3.9")
    assert contents.requires == ("other>=1; extra == 'fast'",)


def test_a_wheel_without_a_name_or_with_a_module_of_pythons_is_refused() -> None:
    assert "name or version" in refusal_of(wheel(metadata="Name: x\n"), "x-1-py3-none-any.whl")
    assert "a module `json`" in refusal_of(wheel(("json.py", "")), "x-1-py3-none-any.whl")
    assert "is a .zip" in refusal_of(zipped(), "x-1-py3-none-any.whl")


def test_a_zip_of_modules_without_a_program_is_accepted_and_an_empty_one_is_not() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("shapes/__init__.py", "")
    kind, contents = inspect_artifact(buffer, "shapes.zip")
    assert (kind, contents.runnable, contents.modules) == (ArtifactKind.ZIP, False, ("shapes",))
    assert inspect_artifact(zipped(("shapes.py", "")), "job.zip")[1].modules == ("shapes",)
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("notes.txt", "none")
    assert "nor a module" in refusal_of(empty, "notes.zip")


def test_only_what_python_can_import_has_an_import_name() -> None:
    files = ("a/__init__.py", "a/b.py", "c/d.py", "1.py", "my-data/x.py", "e.txt", "f.abi3.so", "g/__pycache__/h.pyc")
    assert import_names(files) == ["a", "c.d", "f"]


def link_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


NO_METADATA = zip_of(**{"a-1.dist-info/WHEEL": "x"})
DEEP, TOO_DEEP = ("d/" * depth + "m.py" for depth in (ZIP_DEPTH_MAX, ZIP_DEPTH_MAX + 1))


RULES: list[tuple[bytes, str, str | None]] = [
    (SCRIPT.encode(), ".txt", "does not end in .py, .zip, .whl or .jar"),
    (SCRIPT.encode(), ".jar", "named .jar but is a .py"),
    (b" \n", ".py", "the file is empty"),
    (b"\ndef b(:\n", ".py", "Python cannot parse line 2"),
    (b"\0", ".py", "ython cannot parse"),
    (b"x = 11111\n", ".py", None),
    (b"x = 111111\n", ".py", "too large for a Python file"),
    (MAIN[:-8], ".zip", "the zip cannot be read"),
    (MAIN.replace(b"print(1)", b"print(2)"), ".zip", "an entry of the zip is damaged"),
    (zip_of(**{f"m{number}.py": "" for number in range(3)}), ".zip", None),
    (zip_of(**{f"m{number}.py": "" for number in range(4)}), ".zip", "more than 3 modules outside"),
    (zip_of(**{f"m{number}.txt": "" for number in range(6)}), ".zip", "more than 5 entries"),
    (zip_of(**{"m.py": "#" * 600}), ".zip", None),
    (zip_of(**{"m.py": "#" * 601}), ".zip", "unpacks to more than 600 bytes"),
    (link_of("m.py"), ".zip", "points outside of it"),
    (zip_of(**{"C:/m.py": ""}), ".zip", "points outside of it"),
    (zip_of(**{"a/C:/m.py": "", "m.py": ""}), ".zip", None),
    (zip_of(**{"a/../m.py": ""}), ".zip", "points outside of it"),
    (zip_of(**{"a\\..\\m.py": ""}), ".zip", "points outside of it"),
    (zip_of(**{DEEP: ""}), ".zip", None),
    (zip_of(**{TOO_DEEP: ""}), ".zip", "too many directories"),
    (zip_of(**{"main.py": "def broken(:\n"}), ".zip", "cannot parse the zip's main.py"),
    (zip_of(**{"a.txt": ""}), ".zip", "neither main.py nor __main__.py"),
    (zip_of(**{"json/tool.py": ""}), ".zip", "the zip has a module `json`"),
    (zip_of(**{"META-INF/manifest.mf": ""}), ".zip", "named .zip but is a .jar"),
    (NO_METADATA, ".whl", "no METADATA of usual size"),
    (wheel(metadata="x" * 101).getvalue(), ".whl", "no METADATA of usual size"),
    (wheel(metadata="Version: 1\n").getvalue(), ".whl", "lacks its name or version"),
    (wheel(metadata="Name: a\nVersion: 1\n" + "Requires-Dist: b\n" * 2).getvalue(), ".whl", None),
    (
        wheel(metadata="Name: a\nVersion: 1\n" + "Requires-Dist: b\n" * 3).getvalue(),
        ".whl",
        "too many requirements",
    ),
]


@pytest.mark.parametrize(("content", "ending", "refusal"), RULES, ids=[rule[2] or "taken" for rule in RULES])
def test_each_rule_of_artifacts_has_its_refusal_and_its_border(
    monkeypatch: pytest.MonkeyPatch, content: bytes, ending: str, refusal: str | None
) -> None:
    limits = {
        "SCRIPT_BYTES_MAX": 10,
        "ZIP_ENTRIES_MAX": 5,
        "ZIP_UNPACKED_BYTES_MAX": 600,
        "METADATA_BYTES_MAX": 100,
        "MODULES_MAX": 3,
        "REQUIREMENTS_MAX": 2,
    }
    for name, most in limits.items():
        monkeypatch.setattr(artifact_inspector, name, most)
    if refusal is None:
        assert ENDINGS[inspected(io.BytesIO(content), ending)["kind"]] == ending
    else:
        with pytest.raises(ArtifactRefusedError, match=re.escape(refusal)):
            inspected(io.BytesIO(content), ending)


@pytest.mark.parametrize(("free_bytes", "is_taken"), [(2000, True), (1999, False)])
def test_a_small_archive_may_have_any_ratio(
    monkeypatch: pytest.MonkeyPatch, *, free_bytes: int, is_taken: bool
) -> None:
    monkeypatch.setattr(artifact_inspector, "ZIP_RATIO_MAX", 1)
    monkeypatch.setattr(artifact_inspector, "ZIP_RATIO_FREE_BYTES", free_bytes)
    content = zipped(("zeros", bytes(2000 - len(SCRIPT))))
    if is_taken:
        assert inspected(content, ".zip") == {"kind": "ZIP", "contents": {"runnable": True, "modules": []}}
    else:
        with pytest.raises(ArtifactRefusedError, match="more than 1 times its size"):
            inspected(content, ".zip")


def test_what_an_inspector_prints_has_the_kind_and_the_content(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(artifact_inspector.resource, "setrlimit", lambda *limit: limits.append(limit))

    def printed(content: bytes, ending: str) -> Any:
        monkeypatch.setattr(artifact_inspector.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert artifact_inspector.main([ending]) == 0
        return json.loads(capsys.readouterr().out)

    assert printed(SCRIPT.encode(), ".py") == {"kind": "PYTHON", "contents": {}}
    assert {limit[0]: limit[1][0] for limit in limits} == {
        resource.RLIMIT_CPU: artifact_inspector.CPU_S_MAX,
        resource.RLIMIT_AS: artifact_inspector.MEMORY_BYTES_MAX,
        resource.RLIMIT_CORE: 0,
    }
    both = zip_of(**{"__main__.py": "", "main.py": "", "shapes/__init__.py": "", "shapes/round.py": "", "a/b.py": ""})
    assert printed(both, ".zip") == {"kind": "ZIP", "contents": {"runnable": True, "modules": ["a.b", "shapes"]}}
    assert printed(zip_of(**{"META-INF/MANIFEST.MF": ""}), ".jar") == {"kind": "JAR", "contents": {}}
    assert printed(b"", ".py") == {"refused": "the file is empty"}
    entries = (("some/__init__.py", ""), ("some_package-1.2.data/platlib/fast.so", ""), ("x-1.data/scripts/r.py", ""))
    assert printed(wheel(*entries).getvalue(), ".whl")["contents"] == {
        "modules": ["fast", "some"],
        "distribution": "Some.Package",
        "version": "1.2",
        "requires": ["other>=1; extra == 'fast'"],
        "requires_python": ">=3.9",
    }

    def too_expensive(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(artifact_inspector, "inspected", too_expensive)
    assert printed(b"", ".py") == {"refused": artifact_inspector.TOO_EXPENSIVE}


@pytest.mark.parametrize(
    ("ending", "refusal"),
    [
        ((0, '{"kind": "ZIP", "contents": {"runnable": true, "modules": ["a"]}}'), None),
        ((0, '{"refused": "it is empty"}'), "it is empty"),
        ((-9, ""), artifact_inspector.TOO_EXPENSIVE),
        ((1, '{"kind": "ZIP", "contents": {}}'), artifact_inspector.TOO_EXPENSIVE),
        (None, artifact_inspector.TOO_EXPENSIVE),
    ],
)
def test_a_file_is_inspected_from_its_start_apart_from_all_that_this_process_has(
    monkeypatch: pytest.MonkeyPatch, ending: tuple[int, str] | None, refusal: str | None
) -> None:
    started: list[Any] = []

    def run(command: list[str], **given: Any) -> SimpleNamespace:
        started.append((command, given.pop("stdin").read(), given))
        if ending is None:
            raise subprocess.TimeoutExpired(command, given["timeout"])
        return SimpleNamespace(returncode=ending[0], stdout=ending[1].encode())

    monkeypatch.setattr(artifact_inspection.subprocess, "run", run)
    content = io.BytesIO(b"PK and more")
    content.seek(4)
    if refusal is None:
        kind, contents = inspect_artifact(content, "a.b/My.Job.ZIP")
        assert (kind, contents.runnable, contents.modules) == (ArtifactKind.ZIP, True, ("a",))
    else:
        assert refusal_of(content, "a.b/My.Job.ZIP") == refusal
    [(command, read, given)] = started
    assert command == [sys.executable, "-I", artifact_inspector.__file__, ".zip"]
    assert read == b"PK and more"
    assert given == {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "timeout": 60,
        "check": False,
        "cwd": Path("/"),
        "env": {},
    }
