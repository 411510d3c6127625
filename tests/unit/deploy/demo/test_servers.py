"""The demo's broker starts on other ports when another process takes its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from keyscale.deploy.demo.outage import servers

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """#!/usr/bin/env bash
printf '%s %s\\n' "$1" "${KEYSCALE_STACK_KAFKA_PORT:-none}" >>"$KEYSCALE_STACK_DIR/commands"
[[ $1 != start || $(grep -c start "$KEYSCALE_STACK_DIR/commands") -gt FAILURES ]]
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    script = tmp_path / "kafka"
    script.write_text(SCRIPT.replace("FAILURES", str(request.param)))
    script.chmod(0o700)
    monkeypatch.setattr(servers, "_KAFKA", script)
    return tmp_path


@pytest.mark.parametrize("directory", [0, 1, 2], indirect=True)
def test_a_broker_starts_on_the_ports_that_are_free(directory: Path) -> None:
    with servers.running_broker(directory, "orders", 2) as address:
        pass
    commands = [line.split() for line in (directory / "commands").read_text().splitlines()]
    ports = [port for name, port in commands if name == "start"]
    assert [name for name, _ in commands] == ["install", *["start"] * len(ports), "create-topic", "stop"]
    assert address == f"127.0.0.1:{ports[-1]}"
    assert commands[-1][1] == ports[-1]


@pytest.mark.parametrize("directory", [3], indirect=True)
def test_a_broker_that_never_starts_is_an_error(directory: Path) -> None:
    with pytest.raises(click.ClickException, match="did not start"), servers.running_broker(directory, "orders", 2):
        pass
    assert "create-topic" not in (directory / "commands").read_text()
