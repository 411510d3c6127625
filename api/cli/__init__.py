"""The command line: every command but `up`, `demo` and `where` talks to a control plane by HTTP."""

from __future__ import annotations

from api.cli.client import ControlPlane
from api.cli.connection import Connection, default_home, find_connection
from api.cli.root import main

__all__ = ["Connection", "ControlPlane", "default_home", "find_connection", "main"]
