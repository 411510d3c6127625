"""Test modules are imported in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.suite import imports
from tests.suite.imports import import_in_turns
from tests.support.repository import ROOT

if TYPE_CHECKING:
    import pytest

FOLDER = ROOT / "tests" / "suite"


def test_each_module_is_imported_by_one_worker_first(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(imports, "import_module", imported.append)
    for worker in range(3):
        before = len(imported)
        import_in_turns([str(FOLDER), f"{__file__}::test_one[a::b]"], worker, 3)
        assert len(imported) > before
    assert sorted(imported) == sorted(f"tests.suite.{file.stem}" for file in FOLDER.glob("test_*.py"))


def test_a_module_that_cannot_be_imported_is_left_to_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def import_module(name: str) -> None:
        tried.append(name)
        raise SyntaxError

    monkeypatch.setattr(imports, "import_module", import_module)
    import_in_turns([str(FOLDER)], 0, 1)
    assert len(tried) == len(list(FOLDER.glob("test_*.py")))
