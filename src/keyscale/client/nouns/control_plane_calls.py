"""The control plane itself."""

from __future__ import annotations

from keyscale.api.replicas.schemas import ReplicaList

from ..call import Call
from ..method import Method, Noun, S


class ControlPlane(Noun[S]):
    """The control plane itself."""

    @Method
    def health(self) -> Call[object]:
        """Shows the version, the state of the parts, and the leader."""
        return Call("GET", "/health", object)

    @Method
    def replicas(self) -> Call[ReplicaList]:
        """Lists all control planes on the database."""
        return Call("GET", "/v1/replicas", ReplicaList)
