from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Drops the product's log, which takes a tenth of a history's time; `--seed N --logs` shows it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
