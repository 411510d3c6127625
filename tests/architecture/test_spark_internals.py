"""Private parts of Spark are used in one room, and all of it is listed, explained and tested."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.spark_switches import SparkUse
from tests.support.error_trees import source_files, syntax_tree
from tests.support.repository import DOCS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

ROOM = ROOT / "jobs" / "spark_internals"
TESTS = ROOT / "tests" / "integration" / "spark_internals"
PAGE = DOCS / "spark-internals.md"
# Attributes of PySpark's objects that lead into the JVM.
PRIVATE = re.compile(r"_(j(vm|sc|df|rdd|sparkSession|conf|seq|cols|map|writer|reader|sq|write|c)|gateway|ssql_ctx)")
MODULES = sorted(path.stem for path in ROOM.glob("*.py") if path.stem != "__init__")
ELSEWHERE = [path for path in source_files() if not path.is_relative_to(ROOM) and not path.is_relative_to(TESTS)]


def private_uses(path: Path) -> list[str]:
    if PRIVATE.search(path.read_text(encoding="utf-8")) is None:
        return []  # most files: to parse them all takes seconds
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: .{node.attr}"
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr)
    ]


def test_private_attributes_of_sparks_objects_are_used_in_the_room_alone() -> None:
    uses = [use for path in ELSEWHERE for use in private_uses(path)]
    assert not uses, "move these to jobs/spark_internals: " + ", ".join(uses)


def test_private_attributes_would_be_found() -> None:
    assert private_uses(ROOM / "hadoop_files.py")
    assert private_uses(ROOM / "source_inputs.py")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_room_has_a_row_in_the_table_a_test_and_says_what_it_relies_on(module: str) -> None:
    assert f"| `{module}` |" in PAGE.read_text(encoding="utf-8"), f"{PAGE} has no row for {module}"
    test = TESTS / f"test_{module}.py"
    assert test.exists(), "write a test that fails when Spark changes what the module relies on"
    assert (ast.get_docstring(ast.parse(test.read_text(encoding="utf-8"))) or "").startswith("Relied on: ")
    docstring = ast.get_docstring(ast.parse((ROOM / f"{module}.py").read_text(encoding="utf-8"))) or ""
    assert re.search(r"It relies on|relies on these", docstring), f"{module} does not say what it relies on"


def test_the_table_lists_no_module_that_is_gone() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Switches")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == MODULES


def test_every_switch_is_documented_and_every_documented_one_exists() -> None:
    switches = PAGE.read_text(encoding="utf-8").split("## Switches")[1]
    assert re.findall(r"^\| `([\w-]+)` \|", switches, re.MULTILINE) == [use.value for use in SparkUse]
