"""The socket of the embedded PostgreSQL has a path that the kernel accepts."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from keyscale.db.embedded import EmbeddedPostgres

TMP = "/tmp"  # noqa: S108 - nothing is written there
SHORT, LONG = f"{TMP}/here", f"{TMP}/{'long' * 30}"


@pytest.mark.parametrize(
    ("root", "temporary", "parent"),
    [(SHORT, SHORT, TMP), (LONG, SHORT, SHORT), (SHORT, LONG, TMP), (LONG, LONG, TMP)],
)
def test_the_socket_is_in_the_first_directory_whose_path_is_short_enough(
    monkeypatch: pytest.MonkeyPatch, root: str, temporary: str, parent: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    directory = EmbeddedPostgres(Path(root)).socket_directory
    assert directory.parent == Path(parent)
    assert (directory == Path(root)) is (root == SHORT)
    with socket.socket(socket.AF_UNIX) as line, pytest.raises(FileNotFoundError):
        line.connect(str(directory / ".s.PGSQL.5432"))


def test_the_kernel_refuses_a_longer_path() -> None:
    with socket.socket(socket.AF_UNIX) as line, pytest.raises(OSError, match="too long"):
        line.connect(f"{LONG}/.s.PGSQL.5432")
