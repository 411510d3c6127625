"""RocksDB's errors, which have only a message, become the errors of the state library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DbClosedError

from keyscale.state import errors
from keyscale.state.engine.rocksdb import _translated
from keyscale.state.engine.rocksdb_settings import LEVELS, MEBIBYTE, Compression, Profile, RocksDbSettings

WHERE = Path("/some/where")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DbClosedError("closed"), errors.StoreClosedError),
        (Exception("IO error: lock hold by current process, acquire time 1"), errors.StoreLockedError),
        (Exception("IO error: While lock file: /x/LOCK: Resource temporarily unavailable"), errors.StoreLockedError),
        (Exception("IO error: No space left on device: While appending to file"), errors.DiskFullError),
        (Exception("IO error: Disk quota exceeded: While appending to file"), errors.DiskFullError),
        (Exception("IO error: Read-only file system: While open a file"), errors.DiskReadOnlyError),
        (Exception("IO error: Permission denied: While open a file"), errors.DiskForbiddenError),
        (Exception("Corruption: block checksum mismatch"), errors.StoreCorruptError),
        (Exception("IO error: No such file or directory: While open a file"), errors.StoreCorruptError),
        (Exception("IO error: Input/output error"), errors.StoreIOError),
        (OSError(28, "No space left on device"), errors.DiskFullError),
    ],
)
def test_each_message_has_its_own_error(error: Exception, kind: type[Exception]) -> None:
    translated = _translated(error, WHERE)
    assert type(translated) is kind
    assert "/some/where" in str(translated)


def test_an_error_of_the_state_library_stays_as_it_is() -> None:
    error = errors.StoreLockedError("held")
    assert _translated(error, WHERE) is error


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("memory_budget_bytes", [8 * MEBIBYTE], [8 * MEBIBYTE - 1, 0]),
        ("write_buffer_fraction", [0.01, 0.99], [0, 1, -0.1]),
        ("key_filter_fraction", [0, 0.5], [-0.01, 0.51]),
        ("batch_fraction", [0.01, 0.99], [0, 1]),
        ("background_threads", [1], [0]),
        ("lookup_threads", [1], [0]),
        ("compression_per_level", [(), (Compression.LZ4,) * LEVELS], [(Compression.LZ4,) * (LEVELS + 1)]),
        ("batch_entries_max", [1], [0]),
        ("batch_bytes_max", [1, 4095 * MEBIBYTE], [0, 4096 * MEBIBYTE]),
        ("local_directories", [(), ("/a", "/b")], [("/a", "b"), ("",)]),
    ],
)
def test_a_setting_is_accepted_up_to_its_bounds(name: str, accepted: list[Any], refused: list[Any]) -> None:
    for each in accepted:
        assert getattr(replace(RocksDbSettings(), **{name: each}), name) == each
    for each in refused:
        with pytest.raises(errors.SettingsError):
            replace(RocksDbSettings(), **{name: each})


def test_each_profile_has_its_own_settings() -> None:
    changed = {
        profile: {
            name: getattr(RocksDbSettings.of(profile), name)
            for name in RocksDbSettings.__dataclass_fields__
            if getattr(RocksDbSettings.of(profile), name) != getattr(RocksDbSettings(), name)
        }
        for profile in Profile
    }
    spinning = {"target_file_bytes": 256 * MEBIBYTE, "level_base_bytes": 1024 * MEBIBYTE}
    assert changed == {
        Profile.DEFAULT: {},
        Profile.SPINNING_DISK: {"block_bytes": 32 * 1024, **spinning},
        Profile.SPINNING_DISK_HIGH_MEMORY: {
            "memory_budget_bytes": 1024 * MEBIBYTE,
            "block_bytes": 128 * 1024,
            **spinning,
        },
        Profile.FLASH_SSD: {"background_threads": 8, "partitioned_index": True},
    }
