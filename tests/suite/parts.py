"""The parts of `./keyscale test --all`, each of which runs by itself, and what is known of them."""

from __future__ import annotations

import json
import subprocess
import tomllib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tests.support.repository import ROOT

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

REPORTS = ROOT / ".keyscale" / "test-parts"
PASSES = ROOT / "tests" / "all-passed.toml"
_SOURCES = (".", ":!tests/all-passed.toml")


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


def _end_to_end(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/e2e/test_{name}.py" for name in names)


PARTS = (
    Part("process", ("tests",), processes=2, measured=True),
    Part("simulation", ("tests/simulation",), processes=2),
    Part("api", ("tests/integration/api",)),
    Part("spark", ("tests/integration/spark", "tests/integration/spark_internals"), processes=2),
    Part("kafka", ("tests/integration/kafka",), processes=2),
    Part("deploy", ("tests/integration/deploy", "tests/e2e/test_bare_debian.py"), processes=1),
    Part("pages", ("tests/pages",)),
    Part("upgrades", _end_to_end("upgrades", "forks", "isolated_clones", "libraries")),
    Part("replicas", _end_to_end("replicas", "control_plane_matrix", "lost_databases")),
    Part("demo", _end_to_end("demo"), processes=1),  # the autoscaler of a demo needs a machine without other tests
    Part("e2e", ("tests/e2e",)),
    Part("crash", ("tests/crash",)),
    Part("soak", ("tests/soak",), processes=1),
)


@dataclass(frozen=True, slots=True)
class Pass:
    """The last run of a part in which every test passed.

    Attributes:
        date: In UTC.
        commit: Of the checkout.
        tests: How many passed.
        seconds: How long they took.
        processor_seconds: How much of the processors they took.
    """

    date: dt.date
    commit: str
    tests: int
    seconds: int
    processor_seconds: int


def read_passes() -> dict[str, Pass]:
    """Returns the last pass of each part that has passed, by the part's name."""
    if not PASSES.is_file():
        return {}
    return {name: Pass(**fields) for name, fields in tomllib.loads(PASSES.read_text()).items()}


def write_pass(part: Part, passed: Pass) -> None:
    """Notes that a part has passed; commit the file."""
    passes = {**read_passes(), part.name: passed}
    PASSES.write_text("\n".join(_table(part.name, passes[part.name]) for part in PARTS if part.name in passes))


def _table(name: str, passed: Pass) -> str:
    # A date and whole numbers are written in TOML as Python writes them; JSON's texts are TOML's.
    fields = {key: json.dumps(value) if isinstance(value, str) else value for key, value in asdict(passed).items()}
    return "".join([f"[{name}]\n", *(f"{key} = {value}\n" for key, value in fields.items())])


def current_commit() -> str:
    """Returns the commit of the checkout, or "" if files differ from it or git does not know."""
    if _git("status", "--porcelain", "--", *_SOURCES) != "":
        return ""
    return _git("rev-parse", "HEAD") or ""


def have_same_sources(one: str, other: str) -> bool:
    """Whether two commits have the same files, but for the noted passes."""
    return _git("diff", "--quiet", one, other, "--", *_SOURCES) is not None


def _git(*arguments: str) -> str | None:
    """Returns what git prints, or None if git fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
