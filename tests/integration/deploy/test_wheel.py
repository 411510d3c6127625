"""The wheel holds one package, `keyscale`, and a machine that has only the wheel runs the whole platform."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.installation import VERSION
from tests.support.repository import DOCS, ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

FOLDERS = ("api", "db", "deploy", "jobs", "state")
DIST_INFO = f"keyscale-{VERSION}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout without network."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-wheel-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "home"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; what it requires is seen through a path to this environment's packages."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, env=without_path())
    (site_packages,) = root.glob("lib/python*/site-packages")
    (site_packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root


def without_path() -> dict[str, str]:
    """This process's environment without the checkout, and without measuring the copy's coverage."""
    left_out = ("PYTHONPATH", "COVERAGE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def first_block(page: Path) -> str:
    """Returns the first block of Python of a page."""
    found = re.search(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, page
    return found[1]


def run(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / arguments[0]), *arguments[1:]]
    return subprocess.run(command, env=without_path(), cwd="/", capture_output=True, text=True, check=False)


def test_it_holds_one_package(contents: set[str]) -> None:
    assert {name.split("/")[0] for name in contents} == {"keyscale", DIST_INFO}


def test_it_holds_every_module_template_page_and_migration(contents: set[str]) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (
            Path(found) / name for found, _, names in os.walk(ROOT / "src", followlinks=True) for name in names
        )
        if "__pycache__" not in path.parts
    }
    packed = {f"src/{name}" for name in contents if not name.startswith(DIST_INFO)}
    assert "src/keyscale/py.typed" in packed
    # Of deploy/ only the modules: its scripts serve a checkout.
    assert packed == {path for path in files if not path.startswith("src/keyscale/deploy/") or path.endswith(".py")}


def test_its_users_import_keyscale_and_nothing_else_of_ours(environment: Path) -> None:
    script = "import importlib.util as u, keyscale; from keyscale import StreamEnvironment; print(keyscale.__file__, *("
    script += f"name for name in {(*FOLDERS, 'src', 'tests', 'bench')} if u.find_spec(name)))"
    answer = run(environment, "python", "-c", script)
    assert answer.returncode == 0, answer.stderr
    (imported,) = answer.stdout.split()
    assert Path(imported).is_relative_to(environment)


def test_the_guides_project_passes_its_own_test(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(first_block(ROOT / "README.md"))
    (tmp_path / "test_visits.py").write_text(first_block(DOCS / "guide" / "testing.md"))
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    answer = subprocess.run(command, env=without_path(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout
    assert "1 passed" in answer.stdout


def test_its_command_tells_its_version(environment: Path) -> None:
    answer = run(environment, "keyscale", "--version")
    assert (answer.returncode, answer.stdout) == (0, f"keyscale {VERSION}\n")


def test_its_command_has_the_demo(environment: Path) -> None:
    answer = run(environment, "keyscale", "demo", "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Run the main job" in answer.stdout


@pytest.mark.exhaustive  # the default tier compares the wheel's files, and starts control planes from the checkout
def test_its_command_starts_a_control_plane(environment: Path, home: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [str(environment / "bin" / "keyscale"), "--home", str(home), "up", "--port", str(port)]

    def is_healthy() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").is_success
        except httpx.TransportError:
            return False

    with log.open("wb") as output:
        process = subprocess.Popen(command, env=without_path(), cwd="/", stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(is_healthy, 120, what="the control plane")
        assert httpx.get(f"http://127.0.0.1:{port}/ui/static/style.css").is_success
    finally:
        process.terminate()
        process.wait(60)
        end_processes(processes_of(home))
