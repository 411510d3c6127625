"""The launcher works from anywhere, whatever the directory is called, and the locks name no download address."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHER = ROOT / "keyscale"
LOCKS = ["requirements.lock", "requirements-dev.lock"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the launcher needs, in a directory whose name holds spaces."""
    copy = tmp_path / "a checkout of mine"
    copy.mkdir()
    for name in ("keyscale", *LOCKS):
        shutil.copy2(ROOT / name, copy / name)
    for package in ("src", "api", "db", "jobs", "state"):
        (copy / package).symlink_to(ROOT / package)
    return copy


def stamped_environment(tmp_path: Path, stamp: str) -> Path:
    """An environment that is this one, seen through links, with a stamp of its own."""
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    # A link to the interpreter alone would lose the packages; a script keeps them.
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (environment / ".keyscale-lock").write_text(stamp)
    return environment


def hash_of(lock: Path) -> str:
    """The stamp of an environment made from this lock: what sha256sum prints for its standard input."""
    return f"{hashlib.sha256(lock.read_bytes()).hexdigest()}  -\n"


def launch(launcher: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(launcher), *arguments],
        env={"PATH": os.environ["PATH"], **environment},  # no HOME
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("script", ["keyscale", ".ci/run"])
def test_a_script_is_sound_bash_and_executable(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / script)], check=False).returncode == 0
    assert os.access(ROOT / script, os.X_OK)


def test_it_starts_from_any_directory_without_a_home_with_spaces_in_its_path(checkout: Path, tmp_path: Path) -> None:
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements.lock"))
    answer = launch(checkout / "keyscale", "--help", KEYSCALE_VENV=str(environment))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "rescale" in answer.stdout


def test_it_starts_through_a_symbolic_link(checkout: Path, tmp_path: Path) -> None:
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements.lock"))
    link = tmp_path / "ks"
    link.symlink_to(checkout / "keyscale")
    assert launch(link, "--help", KEYSCALE_VENV=str(environment)).returncode == 0


def test_the_tests_environment_serves_every_other_command_too(checkout: Path, tmp_path: Path) -> None:
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements-dev.lock"))
    assert launch(checkout / "keyscale", "--help", KEYSCALE_VENV=str(environment)).returncode == 0


@pytest.mark.real
def test_a_benchmark_runs_in_the_development_environment(checkout: Path, tmp_path: Path) -> None:
    for package in ("bench", "tests"):
        (checkout / package).symlink_to(ROOT / package)
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements-dev.lock"))
    answer = launch(checkout / "keyscale", "bench", "state", "--help", KEYSCALE_VENV=str(environment))
    assert answer.returncode == 0, answer.stderr
    assert "Usage: ./keyscale bench state" in answer.stdout


def test_its_exit_code_is_the_commands_own(checkout: Path, tmp_path: Path) -> None:
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements.lock"))
    home = str(tmp_path / "none")
    answer = launch(checkout / "keyscale", "jobs", "list", KEYSCALE_VENV=str(environment), KEYSCALE_HOME=home)
    assert answer.returncode == 1
    assert "CLIENT_CONTROL_PLANE_NOT_FOUND" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["demo", "--help"], "keyscale.deploy.demo"),
        (["--json", "--home", "somewhere", "demo"], "keyscale.deploy.demo"),
        (["--home=somewhere", "demo"], "keyscale.deploy.demo"),
        (["up"], "keyscale.api.cli"),
        (["jobs", "show", "demo"], "keyscale.api.cli"),
        (["--home", "demo", "jobs", "list"], "keyscale.api.cli"),
        (["--token"], "keyscale.api.cli"),
        ([], "keyscale.api.cli"),
    ],
)
def test_the_demo_has_an_entry_point_of_its_own(
    checkout: Path, tmp_path: Path, arguments: list[str], module: str
) -> None:
    environment = stamped_environment(tmp_path, hash_of(checkout / "requirements.lock"))
    (environment / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    answer = launch(checkout / "keyscale", *arguments, KEYSCALE_VENV=str(environment), JAVA_HOME=str(tmp_path / "java"))
    assert answer.stdout.splitlines()[-1] == " ".join(["-P", "-m", module, *arguments])


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_every_package_by_hash_and_names_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?://|--(index|extra-index|find-links|trusted-host)", text)
    pinned = re.findall(
        r"^([A-Za-z0-9._-]+(?:\[[^\]]+\])?)==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE
    )
    required = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(pinned) == len(required)


@pytest.mark.real
def test_packages_are_installed_from_the_lock_alone_and_it_holds_everything_that_they_need() -> None:
    # pip that resolves would meet a newer version of `coverage[toml]` than the pinned one, and refuse every new clone.
    assert "--no-deps --require-hashes" in LAUNCHER.read_text()
    command = [sys.executable, "-m", "pip", "check"]
    check = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (check.returncode, check.stdout.strip()) == (0, "No broken requirements found.")
