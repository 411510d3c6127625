"""A replay removes the directories of killed replays, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyscale.api.cli import replay_directory
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


def test_the_next_replay_closes_each_directory_and_leaves_the_directories_of_other_users(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int | None] = []
    closed: list[int] = []
    lock, close = replay_directory._locked, os.close

    def note(directory: Path, operation: int) -> int | None:
        opened.append(lock(directory, operation))
        return opened[-1]

    def note_close(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    for name in ("first", "second"):
        (temporary / f"{PREFIX}{name}").mkdir()
    monkeypatch.setattr(replay_directory, "_locked", note)
    monkeypatch.setattr(os, "close", note_close)
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        remove_abandoned()
        assert (len(list(temporary.iterdir())), len(opened)) == (2, 2)
    remove_abandoned()
    assert (list(temporary.iterdir()), len(opened)) == ([], 4)
    assert [closed.count(each or 0) >= opened.count(each) for each in opened] == [True] * 4
