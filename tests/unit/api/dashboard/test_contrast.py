"""Colours have enough contrast, in light and in dark: at least 4.5 for text and 3 for shapes, as in WCAG."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keyscale.api import dashboard

STYLE = (Path(dashboard.__file__).parent / "static" / "style.css").read_text()
BLOCKS = dict(zip(("light", "dark"), re.findall(r":root \{([^}]*)\}", STYLE), strict=True))
TEXT = [
    ("ink", "page"),
    ("ink", "surface"),
    ("ink", "sunken"),
    ("ink", "bad-soft"),
    ("ink-soft", "page"),
    ("ink-soft", "surface"),
    ("ink-soft", "sunken"),
    ("accent", "surface"),
    ("accent", "accent-soft"),
    ("accent-ink", "accent"),
    ("bad", "surface"),
    *((tone, f"{tone}-soft") for tone in ("good", "busy", "bad", "calm")),
]
SHAPES = [("focus", "page"), ("focus", "surface"), ("accent", "sunken")]


def colours(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", BLOCKS[scheme]))


def luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", BLOCKS)
@pytest.mark.parametrize(("pair", "least"), [*((pair, 4.5) for pair in TEXT), *((pair, 3.0) for pair in SHAPES)])
def test_colours_that_meet_stand_out_from_each_other(scheme: str, pair: tuple[str, str], least: float) -> None:
    known = colours(scheme)
    assert contrast(known[pair[0]], known[pair[1]]) >= least


def test_both_schemes_name_the_same_colours() -> None:
    assert colours("light").keys() == colours("dark").keys()
