"""The values of OTLP documents in JSON. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from keyscale.installation import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRACE_CHARACTERS, _SPAN_CHARACTERS = 32, 16


def attributes(values: Mapping[str, object]) -> list[dict[str, Any]]:
    """Returns attributes; None is unknown."""
    return [{"key": name, "value": {"stringValue": str(value)}} for name, value in values.items() if value is not None]


def nanoseconds(at_ms: int) -> str:
    """Returns a time: 64-bit numbers are text in OTLP's JSON."""
    return str(at_ms * 1_000_000)


def resource(instance: str) -> dict[str, Any]:
    """Returns the description of a replica."""
    described = {"service.name": "keyscale", "service.version": VERSION, "service.instance.id": instance}
    return {"attributes": attributes(described)}


def trace_id(operation_id: str) -> str:
    """Returns the id of an operation's trace.

    Every process can work it out.
    """
    return hashlib.sha256(operation_id.encode()).hexdigest()[:_TRACE_CHARACTERS]


def span_id(operation_id: str, span: str) -> str:
    """Returns the id of a span.

    A span that is pushed twice is one span.
    """
    return hashlib.sha256(f"{operation_id}/{span}".encode()).hexdigest()[:_SPAN_CHARACTERS]
