"""Tests that share an expensive thing share a worker, long ones come first, and no fast one needs a server."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.suite.database_kinds import superseded
from tests.suite.tiers import SHORT_FILES, arrange
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


class Item:
    """Stands in for a test that pytest has collected."""

    def __init__(
        self, nodeid: str, *fixtures: str, marks: tuple[pytest.MarkDecorator, ...] = (), database: str = "postgres"
    ) -> None:
        self.nodeid = nodeid
        self.fixturenames = fixtures
        self.marks = list(marks)
        self.callspec = SimpleNamespace(params={"database_kind": database})

    def iter_markers(self, name: str) -> Iterator[pytest.MarkDecorator]:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.MarkDecorator | None:
        return next(self.iter_markers(name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)

    @property
    def group(self) -> str:
        [mark] = self.iter_markers("xdist_group")
        return str(mark.args[0])


REAL = (pytest.mark.real,)


def arranged(*items: Item) -> dict[str, str]:
    """The group of each test, in the order in which they run."""
    ordered = list(items)
    arrange(ordered)  # type: ignore[arg-type] - stand-ins
    return {item.nodeid: item.group for item in ordered}


def test_tests_of_one_spark_session_and_one_broker_share_a_worker_and_others_stay_with_their_file() -> None:
    assert arranged(
        Item("a.py::one", "spark", marks=REAL),
        Item("a.py::two", marks=REAL),
        Item("b.py::one", "kafka", "tmp_path", marks=REAL),
        Item("b.py::two", "browser", marks=REAL),
        Item("b.py::three", "spark", marks=(*REAL, pytest.mark.xdist_group("own"))),
    ) == {"a.py::one": "spark", "a.py::two": "a.py", "b.py::one": "spark", "b.py::two": "browser", "b.py::three": "own"}


def test_real_tests_begin_first_and_the_groups_of_several_files_before_them() -> None:
    order = list(
        arranged(
            Item("a.py::fast"),
            Item("b.py::real", marks=REAL),
            Item("c.py::spark", "spark", marks=REAL),
            Item("d.py::fast"),
        )
    )
    assert order == ["c.py::spark", "b.py::real", "a.py::fast", "d.py::fast"]


def test_short_files_come_last() -> None:
    order = list(
        arranged(
            Item("tests/unit/api/a.py::fast"),
            Item("tests/unit/api/b.py::real", marks=REAL),
            Item("tests/unit/test_c.py::fast"),
        )
    )
    assert order == ["tests/unit/api/b.py::real", "tests/unit/test_c.py::fast", "tests/unit/api/a.py::fast"]
    assert (ROOT / SHORT_FILES).is_dir()


@pytest.mark.parametrize("fixture", ["postgres_server", "database_kind", "spark", "kafka", "control_plane", "drivers"])
def test_a_test_that_needs_a_server_must_be_marked(fixture: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"a.py::test needs {fixture}: mark it `real`"):
        arranged(Item("a.py::test", fixture))
    assert arranged(Item("a.py::test", fixture, marks=REAL))
    assert arranged(Item("a.py::test", fixture, marks=(pytest.mark.exhaustive,)))


def test_a_test_with_a_database_in_memory_needs_no_mark() -> None:
    assert arranged(Item("a.py::test", "database_kind", database="memory"))
    with pytest.raises(pytest.UsageError, match="needs spark: mark it"):
        arranged(Item("a.py::test", "database_kind", "spark", database="memory"))


def test_pytest_xdist_knows_the_group_of_a_test() -> None:
    """The versions of both must fit: otherwise each test runs in any worker, without a word."""
    arguments = ["-p", "no:cacheprovider", "--dist", "loadgroup", "-n", "1", "-v", "tests/unit/test_units.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert "test_units.py::test_sizes[1023-1023 B]@tests/unit/test_units.py" in done.stdout


def test_a_run_with_both_databases_leaves_out_the_one_in_memory() -> None:
    ids = {
        "a.py::one[memory-memory]": "memory",
        "a.py::one[postgres-memory]": "postgres",
        "a.py::two[memory]": "memory",
    }
    items: Any = [Item(nodeid, database=kind) for nodeid, kind in ids.items()]
    assert superseded(items) == {"a.py::one[memory-memory]"}
    assert superseded(items[::2]) == set()
