"""A replay removes the directories of killed replays, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyscale.api.cli.replay_directory import PREFIX, new_directory, remove_abandoned
from keyscale.installation import IMPORT_PATH


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_only_directories_of_dead_processes_are_removed(temporary: Path) -> None:
    mine = new_directory()
    abandoned = temporary / f"{PREFIX}abandoned"
    (abandoned / "artifacts").mkdir(parents=True)
    (temporary / f"{PREFIX}link").symlink_to(temporary / "elsewhere")
    (temporary / "elsewhere").mkdir()
    remove_abandoned()
    assert sorted(each.name for each in temporary.iterdir()) == sorted(["elsewhere", mine.name, f"{PREFIX}link"])


def test_a_program_that_takes_the_process_over_keeps_the_directory_until_it_ends(temporary: Path) -> None:
    program = """if True:
        import os, tempfile
        from keyscale.api.cli.replay_directory import new_directory
        print(new_directory(), flush=True)
        os.execv("/bin/cat", ["cat"])
    """
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_PATH), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        made = Path(process.stdout.readline().rstrip())
        process.stdin.write("cat runs\n")
        assert process.stdout.readline() == "cat runs\n"
        remove_abandoned()
        assert made.is_dir()
    remove_abandoned()
    assert not made.exists()
