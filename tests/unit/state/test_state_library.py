"""State as a library of its own: the code on its page runs, and its names are listed once and cheap to import."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from keyscale.api.cli.root import main
from tests.support.repository import DOCS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = DOCS / "state-library.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_pages_code_leads_from_opening_a_store_to_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks()):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)  # noqa: S102 - the page is ours
    assert capsys.readouterr().out == "clicks: 2 entries\nlast-seen: 3 entries\n"
    assert main(["state", "tables", names["location"]]) == 0
    assert "key struct<user: string>, value int64, key_group int32" in capsys.readouterr().out


def test_every_name_on_the_page_comes_from_a_facade() -> None:
    imported = re.findall(r"from (keyscale\S*) import", "\n".join(blocks()))
    assert set(imported) == {"keyscale.state", "keyscale.state_io"}


def test_importing_the_facade_loads_no_other_package_before_a_name_is_used() -> None:
    program = """
import sys
import keyscale.state
heavy = {"pyarrow", "numpy", "rocksdict", "msgspec", "pyspark"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {"PYTHONPATH": str(ROOT / "src")}
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert child.returncode == 0, child.stderr
