"""The pages agree with each other and with the code: links, names, commands, settings, numbers of decisions."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import import_module
from typing import TYPE_CHECKING

import click
import pytest

from keyscale.api.cli.root import keyscale
from keyscale.api.launching.spark_conf import ALLOWED_KEYS
from keyscale.vocabulary import CheckpointStatus, JobStatus
from tests.support.repository import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum
    from pathlib import Path

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:api|bench|db|deploy|docs|jobs|src|state|tests)/[\w./-]*)`")
_DOTTED = re.compile(r"`(keyscale(?:\.\w+)+)`")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            yield target


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        import_module(dotted)
    except ModuleNotFoundError:
        return "." in dotted and hasattr(import_module(module), name)
    return True


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_file_and_module_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []
    assert [name for name in _DOTTED.findall(text) if not resolves(name)] == []


@pytest.mark.parametrize(("page", "engine"), [("transform-with-state.md", "Spark"), ("flink.md", "Flink")])
def test_the_guide_has_a_table_of_differences_per_engine_with_the_reason_for_each(page: str, engine: str) -> None:
    text = (DOCS / "guide" / page).read_text(encoding="utf-8")
    (table,) = re.findall(
        rf"^\| of \| in {engine} \| here \| reason \|\n(.*?)\n\n", f"{text}\n", re.DOTALL | re.MULTILINE
    )
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row


def test_decisions_are_numbered_without_gaps_and_listed_with_their_titles() -> None:
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in DECISIONS]
    assert [title.partition(". ")[0] for title in titles] == [f"# {number}" for number in range(1, len(titles) + 1)]
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    for page, title in zip(DECISIONS, titles, strict=True):
        number, _, words = title.removeprefix("# ").partition(". ")
        assert page.name.startswith(f"{int(number):04}-")
        assert f"\n{number}. [{words}]({page.name})\n" in index


def test_the_architecture_lists_the_layers_of_the_import_contracts() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            folder = contract["containers"][0].removeprefix("keyscale.").replace(".", "/")
            layers = [re.sub(r"(\w+)", r"`\1`", re.sub(" [|:]", ",", layer)) for layer in contract["layers"]]
            assert f"| `{folder}/` | {' → '.join(layers)} |" in page


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_on_a_page_is_python_and_imports_names_that_exist(page: Path) -> None:
    for block in _PYTHON.findall(page.read_text(encoding="utf-8")):
        imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
        ours = [node for node in imports if (node.module or "").partition(".")[0] == "keyscale"]
        missing = [name.name for node in ours for name in node.names if not resolves(f"{node.module}.{name.name}")]
        assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    listed = {(DOCS / target.partition("#")[0]).resolve() for target in _LINK.findall(index.read_text("utf-8"))}
    assert set(DOCS.rglob("*.md")) - listed - set(DECISIONS) - {index} == set()


def test_every_command_is_described() -> None:
    described = (DOCS / "cli.md").read_text(encoding="utf-8")
    for name, command in keyscale.commands.items():
        rows = [line for line in described.splitlines() if line.startswith("|") and f"`{name}" in line]
        assert rows, name
        for inner in command.commands if isinstance(command, click.Group) else ():
            assert any(f"`{name} {inner}`" in row or f"`{inner}`" in row for row in rows), f"{name} {inner}"


def test_the_spark_settings_that_a_job_may_set_are_listed() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    section = page.partition("## Spark settings")[2].partition("\n## ")[0]
    items = "\n".join(re.findall(r"^(?:-|  ) ?.*$", section, re.MULTILINE))
    assert set(re.findall(r"`(spark\.[\w.]+)`", items)) == ALLOWED_KEYS


@pytest.mark.parametrize(("of", "statuses"), [("checkpoint", CheckpointStatus), ("job", JobStatus)])
def test_the_glossary_lists_all_statuses(of: str, statuses: type[StrEnum]) -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    listed = re.search(rf"Status of a {of}:([^.]*)\.", text)
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed[1]) == list(statuses)
