"""Mistakes in patches: their file, the lines whose tests are run, and patches that cannot be tried."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.mutants.mutated_copy import MutationError
from tests.mutants.patches import mistakes_in

SOURCE = """\
def use(
    path: str,
) -> None:
    if path:
        note(
            path,
            at=1,
        )
    clear(path)
    keep(path)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/api").mkdir(parents=True)
    (tmp_path / "root/api/uses.py").write_text(SOURCE)
    (tmp_path / "patches").mkdir()
    return tmp_path / "root"


def patched(root: Path, name: str, before: str, after: str, path: str = "api/uses.py") -> None:
    assert before in SOURCE
    texts = (text.splitlines(keepends=True) for text in (SOURCE, SOURCE.replace(before, after)))
    patch = "".join(unified_diff(*texts, f"a/{path}", f"b/{path}"))
    file = root.parent / "patches" / name
    file.write_text((file.read_text() if file.exists() else "") + patch)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("            at=1,\n", "", (5, 8)),
        ("    clear(path)\n", "", (9, 9)),
        ("    clear(path)\n", "    clear(path)\n    clear(path)\n", (9, 10)),
        ("if path", "if not path", (4, 4)),
        ("    path: str", "    path: bytes", (1, 3)),
    ],
)
def test_the_lines_of_a_mistake_are_of_whole_statements(
    root: Path, before: str, after: str, lines: tuple[int, int]
) -> None:
    patched(root, "01.patch", before, after)
    [mistake] = mistakes_in(root.parent / "patches", root)
    assert (mistake.kind, mistake.path, mistake.lines) == ("01", Path("api/uses.py"), lines)
    assert mistake.applied(SOURCE.encode()).decode() == SOURCE.replace(before, after)


def test_patches_that_cannot_be_tried_are_named(root: Path) -> None:
    patched(root, "01.patch", "clear", "clean")
    patched(root, "01.patch", "clear", "clean", "api/more.py")
    with pytest.raises(MutationError, match=r"01\.patch changes 2 files instead of one"):
        mistakes_in(root.parent / "patches", root)
    (root.parent / "patches/01.patch").unlink()
    patched(root, "02.patch", "clear", "clean")
    (root / "api/uses.py").write_text("")
    with pytest.raises(MutationError, match="patch does not apply"):
        mistakes_in(root.parent / "patches", root)
