"""What becomes of the commits of a sink's system: some are refused, some are lost, and some answers never arrive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

UNANSWERED_SECONDS = 2.0
LATE_SECONDS = (0.5, 4.0)


class Commit(Enum):
    """What becomes of one commit."""

    WELL = auto()
    REFUSED = auto()  # the system says no, and the transaction stays open
    LOST = auto()  # the system has aborted the transaction by itself
    UNANSWERED = auto()  # the commit is applied, and the answer is lost
    LATE = auto()  # the commit is applied after its client has given up, if it still can be


@dataclass(slots=True)
class CommitFaults:
    """How often, per commit, each fault comes."""

    refused: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0

    def draw(self, world: World) -> Commit:
        """Draws what becomes of a commit."""
        shares = {
            Commit.REFUSED: self.refused,
            Commit.LOST: self.lost,
            Commit.UNANSWERED: self.unanswered,
            Commit.LATE: self.late,
        }
        if not any(shares.values()):
            return Commit.WELL
        drawn = world.chance.random()
        for fate, share in shares.items():
            drawn -= share
            if drawn < 0:
                world.reach(f"the commit of a sink was {fate.name.lower()}")
                return fate
        return Commit.WELL
