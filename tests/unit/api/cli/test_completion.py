"""A shell completes commands and options by a script that the command line prints."""

from __future__ import annotations

import pytest

from keyscale.api.cli.root import main


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_of_a_shell_asks_the_command_line_itself(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_KEYSCALE_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_commands_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_KEYSCALE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "keyscale operations ap")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert capsys.readouterr().out.splitlines() == ["plain,approve"]
