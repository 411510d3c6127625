"""The tables of docs/settings.md, from `JobSpec`. `python -m tests.support.settings_reference` writes the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.jobs.protocol.declared_settings import declared_settings
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from keyscale.jobs.protocol.declared_settings import DeclaredSetting

PAGE = DOCS / "settings.md"
HEAD = "| setting | type | default | change | meaning |\n|---|---|---|---|---|"


def reference() -> str:
    """The page below its introduction: a row per setting, in the order of their declaration."""
    return "\n".join([HEAD, *map(row, declared_settings())]) + "\n"


def row(setting: DeclaredSetting) -> str:
    default = "" if setting.default in (None, []) else f"`{setting.default}`"
    of_types = f" With {', '.join(f'`{each}`' for each in setting.of_types)}." if setting.of_types else ""
    meaning = f"{setting.description}{of_types}".replace("|", "\\|")
    return f"| `{setting.path}` | {type_of(setting)} | {default} | {setting.change_class} | {meaning} |"


def type_of(setting: DeclaredSetting) -> str:
    if setting.choices:
        return ", ".join(f"`{each}`" for each in setting.choices)
    bounds = [setting.minimum, setting.maximum]
    if bounds == [None, None]:
        return setting.type
    least, most = ("" if each is None else f"{each:,}" for each in bounds)
    return f"{setting.type}, {least} to {most}"


def main() -> None:
    """Writes the page; its introduction stays."""
    introduction, _, _ = PAGE.read_text(encoding="utf-8").partition("\n| setting |")
    PAGE.write_text(f"{introduction.rstrip()}\n\n{reference()}", encoding="utf-8")


if __name__ == "__main__":
    main()
