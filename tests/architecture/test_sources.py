"""How the sources are cut: modules with a noun for a name, packages that say what they offer."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from functools import cache
from importlib.util import resolve_name
from typing import TYPE_CHECKING

import pytest

from tests.support.error_trees import PACKAGES, source_files, syntax_tree
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOORS = {f"keyscale.state.doors.{path.stem}" for path in (ROOT / "state" / "doors").glob("[a-z]*.py")}
FACADES = {"keyscale.client", "keyscale", "keyscale.state", "keyscale.testing", "keyscale.db.models", *DOORS}
# Names of several modules that mean the same in each. Inside of `api`
# and `db`, where every room has a module per noun of the REST API, names may repeat.
SHARED_NAMES = {
    "artifact",
    "attempt",
    "backend",
    "checkpoints",
    "deleted_job",
    "errors",
    "kafka",
    "key_state",
    "schemas",
    "snapshot_sql",
    "user_metrics",
}
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


def test_two_modules_share_a_name_only_if_it_means_the_same_in_both() -> None:
    names = Counter(
        path.stem
        for path in source_files()
        if path.name[0] != "_" and path.relative_to(ROOT).parts[0] in {"state", "jobs", "deploy", "src"}
    )
    names.update({path.stem for path in source_files() if path.relative_to(ROOT).parts[0] in {"api", "db"}})
    assert {name for name, count in names.items() if count > 1} - {"__init__", "__main__"} == SHARED_NAMES


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    passed_on = [
        f"{relative(path)}: {module}.{name}"
        for path in source_files()
        for module, name in names_imported_by(path)
        if module.startswith("keyscale") and module not in FACADES and name in imported_names(module)
    ]
    assert passed_on == []


def test_a_name_that_is_passed_on_would_be_found() -> None:
    assert ("keyscale.errors", "KeyscaleError") in names_imported_by(ROOT / "jobs" / "errors.py")
    assert "KeyscaleError" in imported_names("keyscale.jobs.errors")


def test_a_door_lists_what_other_packages_use() -> None:
    used = {
        (module, name)
        for path in source_files()
        if path.relative_to(ROOT).parts[0] in {"jobs", "api", "db", "deploy", "src"}
        for module, name in names_imported_by(path)
    }
    names = [(door, name) for door in DOORS for name in importlib.import_module(door).__all__]
    assert len(names) > len(DOORS)
    assert set(names) - used == set()


def test_a_name_is_listed_by_one_door() -> None:
    names = Counter(name for door in DOORS for name in importlib.import_module(door).__all__)
    assert {name for name, count in names.items() if count > 1} == set()


def names_imported_by(path: Path) -> list[tuple[str, str]]:
    """Returns the module, absolute, and the name of each import of a name."""
    imports = [node for node in import_nodes(path) if isinstance(node, ast.ImportFrom)]
    package = ".".join(("keyscale", *path.relative_to(ROOT).parts[:-1]))
    modules = [resolve_name("." * node.level + (node.module or ""), package) for node in imports]
    return [(module, name.name) for module, node in zip(modules, imports, strict=True) for name in node.names]


@cache
def imported_names(module: str) -> set[str]:
    """Returns the names that a module of ours has imported from others."""
    file = (ROOT / "src" / module.replace(".", "/")).with_suffix(".py")
    if not file.is_file():
        return set()
    return {name.asname or name.name for node in import_nodes(file) for name in node.names}


@cache
@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Returns the imports of a source; to look into its expressions would take most of the time."""
    found, left = [], list[ast.AST](syntax_tree(path).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom | ast.Import):
            found.append(node)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            left.extend(ast.iter_child_nodes(node))
    return found


def test_a_package_that_offers_names_lists_them() -> None:
    offers = {path: offered(path) for path in PACKAGE_FILES}
    assert any(offers.values())
    assert [relative(path) for path, nodes in offers.items() if nodes and "__all__" not in listed(nodes)] == []


def offered(package: Path) -> list[ast.stmt]:
    body = syntax_tree(package).body
    return [node for node in body if not isinstance(node, ast.Expr) and not is_future_import(node)]


def listed(nodes: list[ast.stmt]) -> list[str]:
    return [name for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) for name in assigned_names(node)]


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
        if "logging.getLogger(" in path.read_text(encoding="utf-8")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger(")
    }
    assert made
    assert {found for found in made if found[1] != "logger = logging.getLogger(__name__)"} == set()
