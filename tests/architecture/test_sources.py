"""How the sources are cut: modules with a noun for a name, packages that say what they offer."""

from __future__ import annotations

import ast
import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.error_trees import PACKAGES, source_files
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
PACKAGE_FILES = [path for path in source_files() if path.name == "__init__.py"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_has_a_name_that_says_nothing_or_hides_the_standard_library() -> None:
    names = {
        relative(path): path.stem for path in source_files() if path.parts[-1] not in {"__init__.py", "__main__.py"}
    }
    ours = {path: name for path, name in names.items() if not path.startswith("tests/")}
    assert {path for path, name in ours.items() if name in EMPTY_NAMES or name in sys.stdlib_module_names} == set()


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative)
def test_a_package_that_offers_names_lists_them(path: Path) -> None:
    tree = ast.parse(path.read_text())
    offers = [node for node in tree.body if not isinstance(node, ast.Expr) and not is_future_import(node)]
    if not offers:
        return
    listed = [name for node in offers if isinstance(node, ast.Assign | ast.AnnAssign) for name in assigned_names(node)]
    assert "__all__" in listed


def assigned_names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_future_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_lists_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name), f"{package}.{name}"


def test_a_logger_is_called_logger_and_by_its_module() -> None:
    made = {
        (relative(path), ast.unparse(node))
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger(")
    }
    assert made
    assert {found for found in made if found[1] != "logger = logging.getLogger(__name__)"} == set()
