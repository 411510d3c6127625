"""The code of docs/guide/client.md, against a control plane whose operations end without a driver."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.completed_operations import operations_that_complete
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "guide" / "client.md").read_text(encoding="utf-8"), re.DOTALL)
PROGRAM = "from keyscale import StreamEnvironment\n\nStreamEnvironment.current().execute()\n"


def test_the_code_of_the_page_runs(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "departures.py").write_text(PROGRAM)
    monkeypatch.setenv("KEYSCALE_URL", platform.url)
    monkeypatch.setenv("KEYSCALE_TOKEN", platform.token)
    names: dict[str, Any] = {}
    with operations_that_complete(platform.sessions):
        for block in BLOCKS:
            if "asyncio.run" in block:
                block = block.replace("asyncio.run", "run_coroutine").replace(  # noqa: PLW2901
                    "import asyncio", "from tests.support.coroutines import run_coroutine"
                )
            exec(compile(block, "client.md", "exec"), names)  # noqa: S102 - the page's own code
    names["client"].close()
    printed = capsys.readouterr().out.splitlines()
    assert "checkpoints.interval_ms 10000 -> 5000" in printed
    assert {"COMPLETED REQUESTED", "departures RUNNING 2"} <= set(printed)
    assert any(line.startswith("JOB_CREATED") for line in printed)
    assert any(line.startswith("404 JOB_NOT_FOUND") for line in printed)
    assert "['departures']" in printed
    assert platform.api.get("/v1/jobs/departures")["spec"]["checkpoints"]["interval_ms"] == 5000


def test_the_notebook_has_the_code_of_the_page_and_no_results() -> None:
    cells = json.loads((DOCS / "notebooks" / "client.ipynb").read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [ast.dump(ast.parse(code)) for code in codes] == [ast.dump(ast.parse(block)) for block in BLOCKS[:4]]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
