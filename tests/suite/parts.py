"""The parts of `./keyscale test --all`, each of which runs by itself, and what is known of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

RESULTS = ROOT / ".keyscale" / "test-parts"


@dataclass(frozen=True, slots=True)
class Part:
    """Files and folders whose tests of every tier run together.

    Attributes:
        name: What it is called on the command line.
        paths: Files and folders of tests. A path of another part below one of them belongs to the other part.
        processes: Of pytest-xdist.
        measured: Whether coverage is measured: of tests that call the code in their own process.
    """

    name: str
    paths: tuple[str, ...]
    processes: int = 3
    measured: bool = False

    def arguments(self) -> list[str]:
        """What pytest is called with."""
        return [*self.paths, *(f"--ignore={path}" for path in self._ignored()), "-m", "real or not real"]

    def holds(self, path: str) -> bool:
        """Whether a file of tests belongs to this part."""
        return _is_below(path, self.paths) and not _is_below(path, self._ignored())

    def _ignored(self) -> list[str]:
        """Paths below this part's that belong to other parts."""
        others = [path for part in PARTS if part is not self for path in part.paths]
        return [path for path in others if _is_below(path, self.paths)]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


PARTS = (
    Part("process", ("tests",), processes=2, measured=True),
    Part("simulation", ("tests/simulation",), processes=2),
    Part("api", ("tests/integration/api",)),
    Part("spark", ("tests/integration/spark", "tests/integration/spark_internals"), processes=2),
    Part("kafka", ("tests/integration/kafka",), processes=2),
    Part("deploy", ("tests/integration/deploy", "tests/e2e/test_bare_debian.py"), processes=1),
    Part("pages", ("tests/pages",)),
    Part("e2e", ("tests/e2e",)),
    Part("crash", ("tests/crash",)),
    Part("soak", ("tests/soak",), processes=1),
)


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part went at a commit."""

    commit: str
    passed: int
    failed: int
    seconds: float
    processor_seconds: float

    @property
    def is_good(self) -> bool:
        return self.passed > 0 and self.failed == 0


def read_result(part: Part) -> PartResult | None:
    """Returns how the part went when it last ran, or None."""
    try:
        return PartResult(**json.loads((RESULTS / f"{part.name}.json").read_text()))
    except FileNotFoundError:
        return None


def write_result(part: Part, result: PartResult) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{part.name}.json").write_text(json.dumps(asdict(result), indent=1) + "\n")


def current_commit() -> str:
    """Returns the commit of the checkout, or "" if files differ from it or git does not know."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    return "" if git("status", "--porcelain") else git("rev-parse", "HEAD")
