"""Runs the tests that reach a mistake, each time in a process forked from one that has imported the libraries."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutants.mutated_copy import MutationError
from tests.mutants.reach import FAST
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.mutants.reach import Reach
    from tests.mutants.uses import Mistake

_LIBRARIES = (
    "fastapi",
    "hypothesis.stateful",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark.sql",
    "rocksdict",
    "sqlalchemy.orm",
)
_NOT_COPIED = (".git", ".venv", ".keyscale", ".hypothesis", "__pycache__", "node_modules", ".*_cache")
_SECONDS_MIN, _TIMES = 60, 10
"""Processor time that tests may take with a mistake: ten times their usual time, and a minute."""
_CHECKED = 5
_NOT_RUN = 70
_NO_TEST_IS_RED = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def outcomes(mistakes: Iterable[Mistake], reach: Reach, processes: int) -> Iterator[tuple[Mistake, str]]:
    """Yields each mistake with its outcome: noticed, timed out, survived, or unreached.

    Raises:
        MutationError: Tests do not run, or are red without a mistake.
    """
    for library in _LIBRARIES:
        importlib.import_module(library)
    running: dict[int, tuple[Path, Mistake]] = {}
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(_copy()) for _ in range(processes)]
        _check(free[-1], reach)
        for mistake in mistakes:
            tests = reach.tests_of(mistake.path, mistake.lines)
            if not tests:
                yield mistake, "unreached"
                continue
            if not free:
                yield _ended(running, free)
            copy = free.pop()
            source = (ROOT / mistake.path).read_bytes()
            (copy / mistake.path).write_bytes(mistake.applied(source))
            running[_started(copy, tests, sum(reach.seconds[test] for test in tests))] = (copy, mistake)
        while running:
            yield _ended(running, free)


def _check(copy: Path, reach: Reach) -> None:
    """Runs some tests without a mistake.

    Raises:
        MutationError: One is red, as it would be with every mistake.
    """
    _, status = os.waitpid(_started(copy, sorted(reach.seconds)[:_CHECKED], 0), 0)
    if status:
        message = f"tests are red without a mistake:\n{(copy.parent / 'output').read_text()}"
        raise MutationError(message)


@contextmanager
def _copy() -> Iterator[Path]:
    """Yields a copy of the checkout that is deleted in the end."""
    memory = Path("/dev/shm")  # noqa: S108 - the copy is a directory of its own in it
    with tempfile.TemporaryDirectory(prefix="keyscale-uses-", dir=memory if memory.is_dir() else None) as directory:
        copy = Path(directory, "copy")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        yield copy


def _started(copy: Path, tests: list[str], seconds: float) -> int:
    child = os.fork()
    if child:
        return child
    status = _NOT_RUN
    try:
        os.setsid()
        limit = _SECONDS_MIN + int(_TIMES * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        status = _run(copy, tests)
    finally:
        if status == _NOT_RUN:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(copy: Path, tests: list[str]) -> int:
    """Runs tests in the copy, whose modules take the place of this program's."""
    with (copy.parent / "output").open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(copy / "src"), str(copy)))
    sys.path[:] = [
        path for path in sys.path if not path or not Path(path).is_relative_to(ROOT) or "site-packages" in path
    ]
    sys.dont_write_bytecode = True  # a source that changes twice in a second would be taken for its bytecode
    for name in [name for name in sys.modules if name.partition(".")[0] in ("keyscale", "tests")]:
        del sys.modules[name]
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    imported = "-Wignore::pytest.PytestAssertRewriteWarning"  # libraries that are plugins, too
    options = [
        imported,
        "-x",
        "-q",
        "--tb=short",
        "-pno:cacheprovider",
        "--hypothesis-seed=0",
        "--timeout=300",
        "-m",
        FAST,
    ]
    return pytest.main([*options, f"--basetemp={copy.parent / 'tmp'}", *files], plugins=[_Chosen(tests)])


class _Chosen:
    """Keeps some tests, in their order."""

    def __init__(self, tests: list[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid]
        )


def _ended(running: dict[int, tuple[Path, Mistake]], free: list[Path]) -> tuple[Mistake, str]:
    child, status = os.wait()
    copy, mistake = running.pop(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what tests have left
    shutil.copy2(ROOT / mistake.path, copy / mistake.path)
    free.append(copy)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return mistake, "timed out"
    is_survivor = os.WIFEXITED(status) and os.WEXITSTATUS(status) in _NO_TEST_IS_RED
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _NOT_RUN:
        message = f"the tests of {mistake.path}:{mistake.lines[0]} did not run:\n{(copy.parent / 'output').read_text()}"
        raise MutationError(message)
    return mistake, "survived" if is_survivor else "noticed"
