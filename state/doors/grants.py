"""Grants: credentials for the objects of one job."""

from __future__ import annotations

from ..objects.s3_grant import Grant, assume

__all__ = [
    "Grant",
    "assume",
]
