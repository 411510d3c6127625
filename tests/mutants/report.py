"""The counts of a module's mutants by outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.mutants.core import Edit

HEADER = f"{'module':<48}{'mutants':>9}{'noticed':>9}{'timed out':>11}{'survived':>10}{'accepted':>10}{'share':>9}"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of mutants.

    Attributes:
        noticed: Mutants that turned a test red.
        timed_out: Mutants with which the tests did not end in time. The suite would notice them, too.
        survived: Mutants that nothing noticed, though something should.
        accepted: Mutants that nothing noticed nor needs to.
    """

    noticed: int = 0
    timed_out: int = 0
    survived: int = 0
    accepted: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.noticed + other.noticed,
            self.timed_out + other.timed_out,
            self.survived + other.survived,
            self.accepted + other.accepted,
        )

    @property
    def mutants(self) -> int:
        return self.noticed + self.timed_out + self.survived + self.accepted

    @property
    def share(self) -> float:
        """The share that was noticed, of the mutants that should be; 1 of none."""
        wanted = self.mutants - self.accepted
        return (self.noticed + self.timed_out) / wanted if wanted else 1.0

    def row(self, name: str) -> str:
        return (
            f"{name.removeprefix('keyscale.'):<48}{self.mutants:>9}{self.noticed:>9}{self.timed_out:>11}"
            f"{self.survived:>10}{self.accepted:>10}{self.share:>9.1%}"
        )


def tally(noticed: int, timed_out: int, survivors: list[Edit], accepted: Collection[Edit]) -> Tally:
    """Counts a module's mutants, of which `survivors` were not noticed."""
    waved_through = sum(edit in accepted for edit in survivors)
    return Tally(noticed, timed_out, len(survivors) - waved_through, waved_through)
