"""Bodies of requests with a specification."""

from __future__ import annotations

from typing import Any

from keyscale.jobs.protocol.specification import JobSpec


def with_spec(**fields: Any) -> dict[str, Any]:
    """A body with the given fields; those that are settings are under `spec`."""
    settings = {name: fields.pop(name) for name in JobSpec.model_fields if name in fields}
    return {**fields, "spec": {**fields.get("spec", {}), **settings}}
