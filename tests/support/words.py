"""Checks first lines of docstrings, errors, pages and commit subjects for plain sentences.

`python -m tests.support.words FILE` checks the commit message in a file; pre-commit calls it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS_MAX = 12
SUBJECT_MAX = 72
PACKAGES = ("state", "jobs", "db", "api", "deploy", "bench", "src")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "api/dashboard/**/*.html", "api/dashboard/**/*.js")

PHRASES = {
    r"(ones?|those) (that|who|which)|(those|that) of|the others|the other(?! \w)|(?<!\w\s)whose": "the noun itself",
    r"nobody|somebody|anybody|none of|(is|are|was|were|changes?|tells?) no(?! (longer|more)\b)": "who does what",
    # Synonyms of words in the glossary.
    r"puts?( [\w`]+)? out": "emit",
    r"lets? go": "release",
    r"maximum parallelism": "max parallelism",
    r"mini-?batch(es)?|microbatch(es)?": "batch",
    r"key[- ]buckets?": "key group",
    r"restore points?": "savepoint",
}
AVOIDED = [
    (re.compile(rf"\b({phrase})\b".replace(" ", r"\s+"), re.IGNORECASE), instead) for phrase, instead in PHRASES.items()
]
NO_IMPERATIVE = re.compile(
    r"(?!Embed|Feed|Need|Bring|Focus)"
    r"(An?|The|This|What|Who|How|Which|Where|When|If|In|On|Of|For|Each|Every|All|New|More|One|Two|\w+(ed|ing|(?<!s)s))\b"
)


def phrases(text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the complaint of each phrase to avoid."""
    for pattern, instead in AVOIDED:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()), f"{found[0]!r}; write {instead}"


def first_line(node: ast.AST, docstring: str) -> Iterator[str]:
    """Yields the complaints about the first line of a docstring."""
    line, _, rest = docstring.partition("\n")
    if len(line.split()) > WORDS_MAX or line[-1] not in ".:?" or rest[:1].strip():
        yield f"{line!r}; write one sentence of at most {WORDS_MAX} words, then a blank line"
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    free = any(re.search(r"property|\.(setter|command|group)\b|^fixture", each) for each in decorators)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not free and not re.match(r"[A-Z][a-z-]+s\b", line):
        yield f"{line!r}; begin with a verb, as in 'Returns'"
    yield from (complaint for _, complaint in phrases(line))


def module(text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the complaint of each docstring, error message and advice."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield from ((node.body[0].lineno, complaint) for complaint in first_line(node, docstring))
        elif isinstance(node, ast.Raise) or is_advice(node):
            for each in ast.walk(node):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield from ((each.lineno, complaint) for _, complaint in phrases(each.value))


def is_advice(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = {getattr(node, "arg", None), *(getattr(target, "id", None) for target in targets)}
    return not names.isdisjoint({"advice", "title"})


def subject(line: str) -> Iterator[str]:
    """Yields the complaints about a commit's subject."""
    if len(line) > SUBJECT_MAX or ";" in line or line.endswith(".") or not line[:1].isupper():
        yield f"{line!r}; write one change in at most {SUBJECT_MAX} characters"
    if NO_IMPERATIVE.match(line):
        yield f"{line!r}; begin with an imperative, as in 'Count shared files once'"
    yield from (complaint for _, complaint in phrases(line))


def complaints() -> Iterator[str]:
    """Yields the place and the text of each complaint about the sources and pages."""
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    for path in sorted({*sources, *pages}):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        found = module(text) if path.suffix == ".py" else ((line + 1, found) for line, found in phrases(text))
        yield from (f"{name}:{line}: {complaint}" for line, complaint in found)


if __name__ == "__main__":
    message = Path(sys.argv[1]).read_text(encoding="utf-8")
    found = [] if message.startswith(("Merge ", "Revert ", "fixup!", "squash!")) else [*subject(message.split("\n")[0])]
    sys.exit("\n".join(found) or None)
