"""With a guard of the product switched off, the auditor finds what the guard holds."""

from __future__ import annotations

import pytest

from tests.simulation.guards import DATA_PLANE, Guard
from tests.simulation.output_guards import OUTPUT


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(guard, id=guard.name, marks=[pytest.mark.exhaustive] if guard.is_dear else [])
        for guard in (*DATA_PLANE, *OUTPUT)
    ],
)
def test_the_auditor_finds_that_a_guard_is_off(guard: Guard) -> None:
    assert guard.first_seed() is not None
