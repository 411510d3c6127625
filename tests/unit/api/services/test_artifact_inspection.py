from __future__ import annotations

import io
import resource
import zipfile

import pytest

from keyscale.api.errors import ArtifactInvalidError
from keyscale.api.services.artifact_inspection import inspect_artifact
from keyscale.api.services.artifact_inspector import SCRIPT_BYTES_MAX, ZIP_UNPACKED_BYTES_MAX
from keyscale.db.statuses import ArtifactKind

SCRIPT = "print(1)\n"


def zipped(*entries: tuple[str, str | bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("main.py", SCRIPT), *entries):
            archive.writestr(name, content)
    return buffer


def refusal_of(content: io.BytesIO, filename: str) -> str:
    with pytest.raises(ArtifactInvalidError) as caught:
        inspect_artifact(content, filename)
    return caught.value.detail


def test_a_script_that_takes_gigabytes_to_parse_is_refused_and_costs_this_process_nothing() -> None:
    content = io.BytesIO(b"a," * (SCRIPT_BYTES_MAX // 2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "to parse" in refusal_of(content, "job.py")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_long_script_of_ordinary_lines_is_accepted() -> None:
    line = b"def total(a, b):\n    return a + b\n"
    assert inspect_artifact(io.BytesIO(line * ((512 << 10) // len(line))), "job.py") is ArtifactKind.PYTHON


def test_a_zip_that_unpacks_to_far_more_than_its_size_is_refused() -> None:
    assert "times its size" in refusal_of(zipped(("zeros", bytes(64 << 20))), "job.zip")


def test_a_zip_that_unpacks_to_more_than_a_gigabyte_is_refused_before_it_is_unpacked() -> None:
    content = bytearray(zipped(("data", b"x")).getvalue())
    at = content.rindex(b"PK\x01\x02") + 24  # the last entry's size, as the directory of the zip says it
    content[at : at + 4] = ZIP_UNPACKED_BYTES_MAX.to_bytes(4, "little")
    assert "unpacks to more than" in refusal_of(io.BytesIO(bytes(content)), "job.zip")


def test_a_zip_of_ordinary_text_may_have_any_ratio_while_it_is_small() -> None:
    assert inspect_artifact(zipped(("table.csv", "0,0,0\n" * 100_000)), "job.zip") is ArtifactKind.ZIP


@pytest.mark.parametrize("entry", ["keyscale/__init__.py", "keyscale.py", "json.py", "json/__init__.pyc", "pyspark.py"])
def test_a_zip_with_a_module_named_like_ours_or_the_standard_librarys_is_refused(entry: str) -> None:
    name = entry.partition("/")[0].partition(".")[0]
    assert f"a module `{name}`" in refusal_of(zipped((entry, "")), "job.zip")


@pytest.mark.parametrize("entry", ["jobs/__init__.py", "mine/json.py", "json/table.csv", "calendar/2026.txt"])
def test_a_zip_may_use_any_other_name(entry: str) -> None:
    assert inspect_artifact(zipped((entry, "")), "job.zip") is ArtifactKind.ZIP
