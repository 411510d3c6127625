"""Mistakes in patches; each patch changes one file of the product."""

from __future__ import annotations

import ast
import shutil
import subprocess
import tempfile
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.mutated_copy import MutationError
from tests.mutants.uses import Mistake

if TYPE_CHECKING:
    from collections.abc import Iterator


def mistakes_in(directory: Path, root: Path) -> list[Mistake]:
    """Returns the mistakes of all patches in a directory, named after them.

    Raises:
        MutationError: A patch does not apply to the checkout at `root`, or changes several files.
    """
    return [_mistake(patch, root) for patch in sorted(directory.glob("*.patch"))]


def _mistake(patch: Path, root: Path) -> Mistake:
    path = _path(patch)
    before = (root / path).read_bytes()
    after = _patched(patch, root, path)
    lines = _statement(before, _changed(before, after)) if path.suffix == ".py" else (1, 1)
    return Mistake(patch.stem, path, patch.stem, lines, ((0, len(before), after),))


def _path(patch: Path) -> Path:
    names = [line.split("\t")[2] for line in _git("apply", "--numstat", str(patch)).splitlines()]
    if len(names) != 1:
        message = f"{patch.name} changes {len(names)} files instead of one"
        raise MutationError(message)
    return Path(names[0])


def _patched(patch: Path, root: Path, path: Path) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, path)
        copy.parent.mkdir(parents=True)
        shutil.copy2(root / path, copy)
        _git("apply", str(patch.resolve()), cwd=directory)
        return copy.read_bytes()


def _git(*arguments: str, cwd: str | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MutationError(done.stderr.strip())
    return done.stdout


def _changed(before: bytes, after: bytes) -> tuple[int, int]:
    """Returns the first and the last changed line; of added lines, the lines beside them."""
    one, other = before.splitlines(), after.splitlines()
    steps = [step for step in SequenceMatcher(a=one, b=other, autojunk=False).get_opcodes() if step[0] != "equal"]
    spans = [(start + 1, end) if end > start else (max(start, 1), end + 1) for _, start, end, *_ in steps]
    return min(start for start, _ in spans), max(end for _, end in spans)


def _statement(source: bytes, lines: tuple[int, int]) -> tuple[int, int]:
    """Returns the lines of the statements that hold some lines; of a compound statement, its head."""
    spans = [span for span in _spans(ast.parse(source)) if span[0] <= lines[1] and lines[0] <= span[1]]
    return min([lines[0], *(span[0] for span in spans)]), max([lines[1], *(span[1] for span in spans)])


def _spans(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            yield node.lineno, max(node.lineno, end or node.lineno)
