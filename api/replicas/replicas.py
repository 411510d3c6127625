"""The replicas of the control plane, as they have announced themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import leaders, replicas

from .schemas import ReplicaAnswer, ReplicaList

if TYPE_CHECKING:
    from ..control_plane.context import Context


def list_all(context: Context) -> ReplicaList:
    """Lists the replicas, by their addresses."""
    with context.reads() as session:
        leader = leaders.read(session)
        found = replicas.list_all(session)
    leads_since_ms = {leader.url: leader.elected_at_ms} if leader is not None and leader.is_there else {}
    return ReplicaList(
        replicas=[
            ReplicaAnswer(
                url=each.url,
                is_alive=each.is_alive,
                seen_at_ms=each.seen_at_ms,
                leads_since_ms=leads_since_ms.get(each.url),
            )
            for each in found
        ]
    )
