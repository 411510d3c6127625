"""The free memory of a host is at most the free memory of the cgroup of the control plane."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching import host_memory
from keyscale.api.launching.host_memory import free_memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

FREE = 5000


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (None, FREE),
        ({}, FREE),
        ({"memory.max": "max", "memory.current": "900", "memory.stat": "inactive_file 100\n"}, FREE),
        ({"memory.max": "9000", "memory.current": "900", "memory.stat": "inactive_file 100\n"}, FREE),
        ({"memory.max": "3000", "memory.current": "900", "memory.stat": "anon 800\ninactive_file 100\n"}, 2200),
    ],
    ids=["no cgroup", "no controller", "no limit", "a high limit", "a low limit"],
)
def test_the_cgroup_of_the_control_plane_limits_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str] | None, expected: int
) -> None:
    for name, text in (files or {}).items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host_memory, "own_cgroup", lambda *_: None if files is None else tmp_path)
    monkeypatch.setattr(host_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=FREE))
    assert free_memory_bytes() == expected
