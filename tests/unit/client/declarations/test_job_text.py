"""The files that an exported job names."""

from __future__ import annotations

from keyscale.client.declarations.job_text import distinct_files


def test_each_artifact_in_use_has_a_file_of_its_own() -> None:
    filenames = {"a" * 32: "count.py", "b" * 32: "count.py", "c" * 32: "lib.whl", "d" * 32: "unused.py"}
    used = ["a" * 32, "c" * 32, "package:kafka", "b" * 32, "c" * 32]
    assert distinct_files(used, filenames) == {
        "a" * 32: "count.py",
        "c" * 32: "lib.whl",
        "b" * 32: "bbbbbbbb/count.py",
    }
