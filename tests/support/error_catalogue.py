"""The entries of docs/errors.md, from the error classes. `python -m tests.support.error_catalogue` writes the page."""

from __future__ import annotations

import re
from textwrap import fill
from typing import Any

from tests.support.error_trees import error_classes
from tests.support.repository import DOCS

PAGE = DOCS / "errors.md"
_SECTIONS = (
    ("Control plane", ("keyscale.api.errors", "keyscale.api.lifecycle.")),
    ("Client, command line and demo", ("keyscale.client.", "keyscale.api.", "keyscale.deploy.")),
    ("Database", ("keyscale.db.",)),
    ("Jobs and their drivers", ("keyscale.jobs.",)),
    ("State and object store", ("keyscale.",)),
)


def errors_by_code() -> dict[str, Any]:
    """The error of each code; of several that share one, the one that the others refine."""
    roots: dict[str, Any] = {}
    for error in error_classes():
        other = roots.setdefault(error.code, error)  # type: ignore[attr-defined]
        if issubclass(other, error):
            roots[error.code] = error  # type: ignore[attr-defined]
    return roots


def entry(error: Any) -> str:
    """Returns an error's entry: its docstring without the attributes, its domain, and its advice."""
    summary = " ".join((error.__doc__ or "").partition("Attributes:")[0].split())
    facts = [error.domain, "retry" if error.retryable else "no retry"]
    if hasattr(error, "status"):
        facts.append(f"HTTP {error.status}")
    paragraphs = (f"{summary} *({', '.join(facts)})*", f"What to do: {shown(error.advice)}")
    wrapped = [fill(text, 118, break_long_words=False, break_on_hyphens=False) for text in paragraphs]
    return "\n\n".join([f"### `{error.code}`", *wrapped]) + "\n"


def shown(advice: str) -> str:
    """Advice as Markdown: a name in angle brackets would vanish as a tag, unless it is code."""
    parts = advice.split("`")
    parts[::2] = [re.sub(r"(<\w+>(?:[\w/.-]*\w)?)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def catalogue() -> str:
    """The page below its introduction: one section per package, by code."""
    left = errors_by_code()
    sections = []
    for title, modules in _SECTIONS:
        codes = sorted(code for code, error in left.items() if error.__module__.startswith(modules))
        sections.append("\n".join([f"## {title}\n", *(entry(left.pop(code)) for code in codes)]))
    return "\n".join(sections)


def main() -> None:
    """Writes the page; its introduction stays."""
    introduction, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## ")
    PAGE.write_text(f"{introduction.rstrip()}\n\n{catalogue()}", encoding="utf-8")


if __name__ == "__main__":
    main()
