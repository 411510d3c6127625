"""A copy of the checkout in which mutmut makes mistakes, one at a time, and runs the tests that concern them."""

from __future__ import annotations

import configparser
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mutmut.configuration import reset_config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

from tests.mutants.core import Edit
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTICED = {"killed", "segfault", "suspicious"}
_SURVIVED = {"survived", "no tests"}
_SPINNER = re.compile("[\u2800-\u28ff]")


class MutationError(Exception):
    """mutmut did not do its work, for example as a test is red without any mistake."""


@dataclass(frozen=True, slots=True)
class Mutants:
    """The outcomes of a module's mutants.

    Attributes:
        noticed: How many turned a test red.
        timed_out: With how many the tests did not end in time.
        survivors: The changes of the others.
    """

    noticed: int
    timed_out: int
    survivors: list[Edit]


@contextmanager
def mutated_copy() -> Iterator[MutatedCopy]:
    """Yields a copy that is deleted in the end. The checkout itself stays as it is, however the run ends."""
    with tempfile.TemporaryDirectory(prefix="keyscale-mutants-") as directory:
        copy = Path(directory)
        ignored = shutil.ignore_patterns("__pycache__")
        # mutmut names modules by their paths, and follows no links: the packages become folders of the copy.
        shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignored)
        shutil.copy2(ROOT / "pyproject.toml", copy)
        yield MutatedCopy(copy)


class MutatedCopy:
    """The copy, for one module after another."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, module: str, tests: list[str], *, sample: int | None, seed: int, processes: int) -> Mutants:
        """Tries mutants of a module.

        Args:
            module: The module's name.
            tests: The paths of the tests that concern it.
            sample: How many mutants to try, chosen at random; None tries all.
            seed: Of the choice.
            processes: How many mutants to try at a time.

        Raises:
            MutationError: The tests are red without a mutant, or mutmut failed.
        """
        source = Path("src", *module.split(".")).with_suffix(".py")
        self._configure(source, tests)
        shutil.rmtree(self._path / "mutants", ignore_errors=True)
        with chdir(self._path):  # mutmut reads its settings and its results where it is
            reset_config()
            chosen = _chosen(_mutants_of(source), sample, f"{module} {seed}")
            if not chosen:
                return Mutants(0, 0, [])
            self._try(chosen, processes)
            outcomes = _outcomes(source, chosen)
            survivors = [_edit(module, mutant, source) for mutant in chosen if outcomes[mutant] in _SURVIVED]
        unknown = set(outcomes.values()) - _NOTICED - _SURVIVED - {"timeout"}
        if unknown:
            message = f"mutmut ended early: mutants are {', '.join(sorted(unknown))}"
            raise MutationError(message)
        return Mutants(
            noticed=sum(outcome in _NOTICED for outcome in outcomes.values()),
            timed_out=sum(outcome == "timeout" for outcome in outcomes.values()),
            survivors=survivors,
        )

    def _configure(self, source: Path, tests: list[str]) -> None:
        settings = configparser.ConfigParser(interpolation=None)
        settings["mutmut"] = {
            "source_paths": "src",
            "only_mutate": str(source),
            # The words of log lines, errors and threads are for people, and sync points for fault tests.
            "do_not_mutate_patterns": r"^\s*(logger\.\w+\(|(raise|return) \w+Error\(|failpoint\()|ThreadPoolExecutor\(",
            "pytest_add_cli_args_test_selection": "\n" + "\n".join(tests),
            # The same examples for every mutant.
            "pytest_add_cli_args": "\n--hypothesis-seed=0\n-pno:cacheprovider",
            # Each test process is forked from one that has imported the tests, but started no threads.
            "process_isolation": "forkserver",
            # The tests may take as long as without a mutant, and 3 seconds more, times 5.
            "timeout_constant": "3",
            "timeout_multiplier": "5",
        }
        with (self._path / "setup.cfg").open("w") as file:
            settings.write(file)

    def _try(self, mutants: list[str], processes: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment.setdefault("KEYSCALE_TEST_EXAMPLES", "12")  # twice as many as in the fast tier
        done = subprocess.run(
            [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *mutants],
            cwd=self._path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if not _SPINNER.match(line)]
            message = "\n".join(["mutmut failed:", *said[-40:]])
            raise MutationError(message)


def _mutants_of(source: Path) -> list[str]:
    mutated = mutate_file_contents(str(source), source.read_text())
    return [get_mutant_name(source, name) for name in mutated.mutant_names]


def _chosen(mutants: list[str], sample: int | None, seed: str) -> list[str]:
    """Returns a random sample. A larger one with the same seed holds the smaller one."""
    if sample is None:
        return mutants
    shuffled = mutants.copy()
    random.Random(seed).shuffle(shuffled)
    kept = set(shuffled[:sample])
    return [mutant for mutant in mutants if mutant in kept]


def _outcomes(source: Path, mutants: list[str]) -> dict[str, str]:
    results = SourceFileMutationData(path=source)
    results.load()
    return {mutant: status_by_exit_code[results.exit_code_by_key[mutant]] for mutant in mutants}


def _edit(module: str, mutant: str, source: Path) -> Edit:
    changes = re.findall(r"^([-+])(?!--|\+\+) *(.*)$", get_diff_for_mutant(mutant, path=source), re.MULTILINE)
    name, of_class = orig_function_and_class_names_from_key(mutant)
    before, after = (" ".join(line for sign, line in changes if sign == wanted) for wanted in "-+")
    return Edit(module, f"{of_class}.{name}" if of_class else name, before, after)
