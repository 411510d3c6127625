"""Each kind of long request has places of its own in each control plane."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from keyscale.api.access.in_flight import InFlight
from keyscale.api.control_plane.context import Context


def made() -> dict[str, Any]:
    """Returns the parts that a control plane makes by itself."""
    return {each.name: each.default_factory() for each in fields(Context) if each.default_factory is not MISSING}


def test_each_kind_of_long_request_has_its_own_number_of_places() -> None:
    parts = made()
    places = {name: part for name, part in parts.items() if isinstance(part, InFlight)}
    assert {name: (part._noun, part._places, part._of_user_max) for name, part in places.items()} == {
        "reports": ("large report", 64, 1),
        "uploads": ("upload", 8, 2),
        "plans": ("plan", 8, 4),
        "checks": ("check of a program", 4, 2),
        "recoveries": ("recovery of jobs", 1, 1),
        "searches": ("log search", 2, 1),
        "state_reads": ("read of state", 2, 1),
        "comparisons": ("comparison", 2, 1),
    }
    assert all(part._plural.startswith(part._noun.partition(" ")[0][:6]) for part in places.values())
    with parts["inspections"], parts["inspections"]:
        assert not parts["inspections"].acquire(blocking=False), "two inspections take two gigabytes"


def test_two_control_planes_of_a_process_share_no_places() -> None:
    first, second = made(), made()
    assert not [name for name in first if first[name] is second[name]]
    assert [each.name for each in fields(Context) if each.default is not MISSING] == ["issuer"], "else it is shared"
