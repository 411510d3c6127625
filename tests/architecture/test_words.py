"""Pages, docstrings, comments, messages and names use plain words: `words.toml` lists phrases to avoid."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
FOLDERS = ("api", "bench", "db", "deploy", "docs", "jobs", "src", "state", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "keyscale", "pyproject.toml")
TEXTS = {".md", ".py", ".pyi", ".html", ".js", ".css", ".bash", ".toml", ".yml", ".sql", ""}
PHRASES = [(re.compile(each["pattern"], re.IGNORECASE), each["instead"]) for each in WORDS["phrase"]]


def files() -> list[Path]:
    own = {Path(__file__), Path(__file__).with_name("words.toml")}
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    known = [path for path in found if path.suffix in TEXTS and not {"__pycache__", "golden"} & set(path.parts)]
    return sorted({*(ROOT / page for page in PAGES), *known} - own)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that people read, with the line that each begins on; of Python, strings and comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix not in {".py", ".pyi"}:
        yield 1, source
        return
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            follows = bool(comments) and comments[-1][0] + comments[-1][1].count("\n") + 1 == token.start[0]
            if follows and not source.splitlines()[token.start[0] - 1][: token.start[1]].strip():
                comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{token.string}")
            else:
                comments.append((token.start[0], token.string))
    yield from comments
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):  # a sentence
            yield node.lineno, node.name.replace("_", " ")


def phrases_to_avoid(path: Path) -> Iterator[str]:
    for first, text in texts(path):
        for pattern, instead in PHRASES:
            for line, phrase in found_in(pattern, text):
                yield f"{path.relative_to(ROOT)}:{first + line}: {phrase!r}; write: {instead}"


def found_in(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """The phrases of a text, each with the number of lines before it. A phrase may be wrapped."""
    flowing, line_at = "", [0]
    for number, line in enumerate(text.splitlines()):
        words = line.strip().lstrip("#*/- ")
        if not words or line.strip().startswith("- "):
            words = f". {words}".strip()  # a paragraph or an item begins a sentence, however the text before it ends
        flowing += f"{words} "
        line_at += [number] * (len(words) + 1)
    for match in pattern.finditer(flowing):
        yield line_at[min(match.start() + 1, len(line_at) - 1)], match[0]


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """The file's own name, and every name that its code defines."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_no_phrase_that_is_to_be_avoided(path: Path) -> None:
    assert sorted(set(phrases_to_avoid(path))) == []


@pytest.mark.parametrize("name", WORDS["name"], ids=lambda name: name["word"])
def test_code_has_no_nickname(name: dict[str, str]) -> None:
    sources = [path for folder in name["folders"] if folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {defined}; write: {name['instead']}"
        for path in sources
        for line, defined in names_in(path)
        if name["word"] in words_of(defined)
    ]
    assert sorted(set(found)) == []


def test_a_phrase_is_found_in_docstrings_comments_and_messages_even_if_it_is_wrapped(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Made\nanew."""\n\n# It is not to be\n# had.\nraise ValueError(f"{x} puts rows out")\n')
    found = {
        (first + line, phrase)
        for first, text in texts(module)
        for pattern, _ in PHRASES
        for line, phrase in found_in(pattern, text)
    }
    assert found == {(2, "anew"), (4, "to be had"), (6, "puts rows out")}


@pytest.mark.parametrize("text", ["A list:\n\nWhat follows is short.", "A list:\n- Whatever is left is dropped."])
def test_a_clause_in_place_of_a_subject_is_found_at_the_start_of_a_paragraph_and_of_an_item(text: str) -> None:
    assert any(list(found_in(pattern, text)) for pattern, _ in PHRASES)


@pytest.mark.parametrize("text", ["one file a subtask", "12 bytes a key", "a directory a batch", "once a record"])
def test_a_rate_without_per_is_found(text: str) -> None:
    assert any(pattern.search(text) for pattern, _ in PHRASES)


@pytest.mark.parametrize(
    "text", ["a task in an executor", "1,000 records a second", "one file per subtask", "gives a key"]
)
def test_other_uses_of_the_article_are_not_found(text: str) -> None:
    assert not any(pattern.search(text) for pattern, _ in PHRASES)
