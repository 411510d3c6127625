"""The README's own job, by the README's own commands: what is written there works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command_line import keyscale
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.control_plane import RunningControlPlane

README = Path(__file__).resolve().parents[2] / "README.md"


def rows(output: Path) -> list[dict[str, Any]]:
    parts = sorted(output.glob("batch=*/*.json"))
    return [json.loads(line) for part in parts if part.name[0] not in "_." for line in part.read_text().splitlines()]


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_the_readmes_job_counts_visits_and_goes_on_counting_after_a_rescale_and_a_stop(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    script = tmp_path / "visits.py"
    script.write_text(blocks[0])
    clicks, output = tmp_path / "in", tmp_path / "out"
    clicks.mkdir()
    create = ["jobs", "create", "visits", "--file", str(script), "--parallelism", "2"]
    create += ["--parameter", f"input={clicks}", "--parameter", f"output={output}", "--start"]

    def run(*arguments: str) -> None:
        answer = keyscale(control_plane, *arguments)
        assert answer.exit_code == 0, answer.stderr

    def click_and_expect(number: int) -> None:
        (clicks / f".{number}.json").write_text('{"user": "ada", "page": "/"}\n')
        (clicks / f".{number}.json").rename(clicks / f"{number}.json")
        wait_until(lambda: {"user": "ada", "visits": number} in rows(output), 300, what=f"visit {number}")

    def status() -> str:
        return str(control_plane.api.get("/jobs/visits")["status"])

    run(*create)
    click_and_expect(1)
    run("rescale", "visits", "4")
    click_and_expect(2)
    run("jobs", "stop", "visits")
    wait_until(lambda: status() == "STOPPED", 60, what="the job to be stopped")
    run("jobs", "start", "visits")
    click_and_expect(3)
    run("checkpoints", "list", "visits")
    run("jobs", "list")
    assert [row["visits"] for row in rows(output)] == [1, 2, 3]
