"""How the sources are cut: short modules with a noun for a name, packages that say what they offer."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from tests.support.error_trees import PACKAGES, source_files

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 400
TEST_LINES_MAX = 500  # many short sentences; no one holds them all at once
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
PACKAGE_FILES = [path for path in source_files() if path.name == "__init__.py"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lines = {relative(path): len(path.read_text().splitlines()) for path in source_files()}
    limits = {path: TEST_LINES_MAX if path.startswith("tests/") else LINES_MAX for path in lines}
    assert {path: count for path, count in lines.items() if count > limits[path]} == {}


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
