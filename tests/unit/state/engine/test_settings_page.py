"""The page of settings has the same text per option as the settings class."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from enum import StrEnum

from keyscale.state.engine.rocksdb_settings import Compression, Profile, RocksDbSettings
from tests.support.repository import DOCS

PAGE = DOCS / "local-store.md"


def rows() -> list[str]:
    """Returns the table's rows, built from the class and its docstring."""
    documentation = inspect.getdoc(RocksDbSettings) or ""
    attributes = documentation.partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", attributes, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in found}
    return [f"| `{field.name}` | {shown(field.default)} | {texts[field.name]} |" for field in fields(RocksDbSettings)]


def shown(value: object) -> str:
    if isinstance(value, StrEnum):
        return f"`{type(value).__name__}.{value.name}`"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return f"`{value!r}`"


def test_the_page_has_a_row_for_every_option_as_the_class_documents_it() -> None:
    of_rocksdb = PAGE.read_text(encoding="utf-8").partition("\n| Option | Default | What")[2].partition("\n\n")[0]
    table = [line for line in of_rocksdb.splitlines() if line.startswith("| `")]
    assert table == rows(), "write the rows that this test's rows() gives into the page"


def test_every_option_is_documented_with_a_sentence() -> None:
    assert all(len(row.split("|")[3].split()) >= 5 for row in rows())


def test_the_page_names_every_profile() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(profile.name in page for profile in Profile)
    assert shown(Compression.LZ4) == "`Compression.LZ4`"
