"""Three versions of the flights job: wrong, repairing and raising.

Each is the example with a few lines changed, so that the example is the only copy of what they share.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from keyscale.installation import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXAMPLE: Final = EXAMPLES / "flights.py"

_COUNT: Final = "flights = (self.flights.value() or 0) + 1"
_DELAY: Final = "(report.dep_delay or 0.0)"
_ENDS: Final = ('"dest_flights": dest_flights,', '"dest_flights": "bigint",  # flights among them to this destination')
_STATE: Final = 'self.by_dest = context.get_map_state(MapStateDescriptor("flights_by_dest", pa.string(), pa.int64()))'

# A delay of 0 minutes is as false as a missing delay: neither punctual nor cancelled flights are counted.
_WRONG: Final = (
    (_COUNT, f"{_COUNT.removesuffix('1')}(1 if report.dep_delay else 0)"),
    ('("flights", pa.int64())', '("flights", pa.int32())'),
)
_REPAIRING: Final = (
    (
        _STATE,
        f"""{_STATE}
        self.missed = context.get_state(ValueStateDescriptor("missed_flights", pa.int64()))""",
    ),
    (
        _COUNT,
        f"""if self.missed.value() is None:  # the first report of this aircraft since version 1
            right = sum(self.by_dest.values())  # these counts were right
            self.missed.update(right - (self.flights.value() or 0))
            self.flights.update(right)
        {_COUNT}""",
    ),
    (_ENDS[0], f'{_ENDS[0]}\n            "missed_flights": self.missed.value(),'),
    (_ENDS[1], f'{_ENDS[1]}\n    "missed_flights": "bigint",  # reports of this aircraft that version 1 did not count'),
)
_RAISING: Final = (*_REPAIRING, (_DELAY, "(report.departure_delay or 0.0)"))
VERSIONS: Final = (_WRONG, _REPAIRING, _RAISING)


def program(version: int) -> str:
    """Returns the text of a version, 1 to 3."""
    return edited(EXAMPLE.read_text(encoding="utf-8"), VERSIONS[version - 1])


def edited(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """Returns a text with parts replaced.

    Raises:
        ValueError: A part does not occur exactly once.
    """
    for before, after in edits:
        if text.count(before) != 1:
            raise ValueError(f"the example does not have exactly once: {before}")
        text = text.replace(before, after)
    return text


def write_programs(directory: Path) -> list[Path]:
    """Writes all versions as scripts into a new directory."""
    directory.mkdir(parents=True)
    files = [directory / f"flights_v{number}.py" for number in range(1, len(VERSIONS) + 1)]
    for number, file in enumerate(files, 1):
        file.write_text(program(number), encoding="utf-8")
    return files


def difference(before: int, after: int) -> list[str]:
    """Returns the changed lines between two versions, with plus and minus."""
    lines = difflib.unified_diff(program(before).splitlines(), program(after).splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
