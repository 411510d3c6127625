"""docs/settings.md lists the settings of a job as `JobSpec` declares them."""

from __future__ import annotations

from tests.support.settings_reference import PAGE, reference


def test_the_page_says_what_the_model_declares() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{reference()}"), (
        "run python -m tests.support.settings_reference"
    )
