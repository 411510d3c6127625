"""Control planes on one database and one store, of which the leader can be lost and brought back."""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.servers.database_link import database_link
from tests.support.servers.postgres import running_postgres
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keyscale.client.keyscale import Keyscale
    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.database_link import DatabaseLink

_ELECTION_S = 120.0


class Loss(StrEnum):
    """How the leader is lost."""

    KILLED = "killed"
    STOPPED = "stopped"  # as on a host that hangs
    CUT_OFF = "cut off"  # from the database


@dataclass(frozen=True, slots=True)
class Member:
    """A control plane and its way to the database."""

    running: RunningControlPlane
    link: DatabaseLink


class ControlPlanes:
    """Some control planes, of which one leads.

    Args:
        members: All of them.
        store_url: Their object store.
    """

    def __init__(self, members: list[Member], store_url: str) -> None:
        self._members = members
        self._lost: tuple[Member, Loss] | None = None
        self.store_url = store_url

    @property
    def api(self) -> Keyscale:
        """A connection to one that is there."""
        return next(member.running.api for member in self._members if member is not self._lost_member)

    @property
    def _lost_member(self) -> Member | None:
        return self._lost[0] if self._lost is not None else None

    def lose_leader(self, loss: Loss) -> None:
        """Loses the leader, and waits until another one leads; the only one is started again at once."""
        leader = self._leader()
        match loss:
            case Loss.KILLED:
                leader.running.kill()
            case Loss.STOPPED:
                leader.running.stop_by_signal()
            case Loss.CUT_OFF:
                leader.link.cut()
        self._lost = leader, loss
        if len(self._members) == 1:
            self.bring_back()
        self._leader()

    def bring_back(self) -> None:
        """Brings the lost one back, and waits until it knows that it does not lead."""
        if self._lost is None:
            return
        (lost, loss), self._lost = self._lost, None
        match loss:
            case Loss.KILLED:
                lost.running.start_again()
            case Loss.STOPPED:
                lost.running.go_on()
            case Loss.CUT_OFF:
                lost.link.mend()
        if len(self._members) > 1:
            wait_until(
                lambda: not lost.running.leads(), _ELECTION_S, what="the lost one's notice that it leads no more"
            )

    def _leader(self) -> Member:
        def find() -> Member | None:
            there = (member for member in self._members if member is not self._lost_member)
            return next((member for member in there if member.running.leads()), None)

        found = wait_until(find, _ELECTION_S, what="a control plane to lead")
        assert found is not None
        return found


@contextmanager
def control_planes(count: int, settings: Mapping[str, str]) -> Iterator[ControlPlanes]:
    """Starts control planes; ends them and everything that they have started afterwards."""
    with (
        running_postgres() as postgres,
        tempfile.TemporaryDirectory(prefix="keyscale-store-") as store,
        ExitStack() as exits,
    ):
        members = []
        for _ in range(count):
            link = exits.enter_context(database_link(postgres.url))
            own = {"KEYSCALE_DATABASE_URL": link.url, "KEYSCALE_STORE_URL": Path(store).as_uri(), **settings}
            members.append(Member(exits.enter_context(running_control_plane(own)), link))
        together = ControlPlanes(members, Path(store).as_uri())
        try:
            yield together
        finally:
            with contextlib.suppress(AssertionError):  # it was lost when a test failed
                together.bring_back()
