"""A support bundle: what is known of a job, as a zip.

It has no secrets, and no records but those in the texts of the job's own exceptions and log.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, revisions
from keyscale.db.repositories.events import EventFilter
from keyscale.errors import KeyscaleError
from keyscale.installation import VERSION
from keyscale.jobs.protocol.redaction import Mask, redact_named
from keyscale.vocabulary import DiagnosticKind, Role

from ..artifacts import artifacts
from ..control_plane.cursors import Listing
from ..diagnostics import diagnostics
from ..diagnostics.schemas import DiagnosticRequest
from ..errors import RoleTooLowError
from ..events import events
from ..jobs import exceptions, jobs
from ..logs import logs
from ..logs.logs import LogPart
from ..metrics import series
from ..metrics.series import Span
from ..operations import operations
from ..snapshots import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..diagnostics.schemas import DiagnosticAnswer

SERIES_SPAN_MS = 6 * 3_600_000
"""How much of the job's metrics over time a bundle has."""
LOG_BYTES_MAX = 1 << 20
THREAD_DUMP_SECONDS_MAX = 15.0
"""How long a bundle waits for the stacks of a running job."""
LATEST = Listing(100)
"""The part of each list that a bundle has."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A zip, and a name for its file."""

    filename: str
    content: bytes


def bundle_of(context: Context, user: Principal, reference: str) -> Bundle:
    """Returns the support bundle of a job.

    A part that cannot be read, such as the log of a host that is gone, is named in `missing.json`.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    job = jobs.show(context, reference)
    span, kinds = Span(from_ms=max(0, now_ms() - SERIES_SPAN_MS)), EventFilter()
    parts: dict[str, Callable[[], BaseModel]] = {
        "attempts": lambda: jobs.list_attempts(context, job.id, LATEST),
        "exceptions": lambda: exceptions.list_of(context, job.id, LATEST),
        "operations": lambda: operations.list_of(context, job.id, LATEST, (), ()),
        "checkpoints": lambda: checkpoints.show_statistics(context, job.id, LATEST),
        "events": lambda: events.list_job_events(context, user, job.id, LATEST, kinds),
        "series": lambda: series.show(context, job.id, span, ()),
        "platform": lambda: artifacts.show_platform(context),
        "threads": lambda: _thread_dump(context, user, job.id),
        "log": lambda: logs.show(context, user, job.id, LogPart(tail_bytes=LOG_BYTES_MAX)),
    }
    found: dict[str, Any] = {"versions": {"keyscale": VERSION}, "job": job.model_dump(mode="json")}
    missing = {}
    for name, read in parts.items():
        try:
            found[name] = read().model_dump(mode="json")
        except KeyscaleError as error:
            missing[name] = f"{error.code}: {error}"
    texts = {"log.txt": found.pop("log")["text"]} if "log" in found else {}
    if "threads" in found:
        stacks = found.pop("threads")["parts"]
        texts["threads.txt"] = "\n".join(f"=== {each['name']} ===\n{each['text']}" for each in stacks)
    mask = _mask_of(context, job.id)
    for name, value in {**found, "missing": missing}.items():
        texts[f"{name}.json"] = json.dumps(masked(value, mask), indent=1)
    name = _NOT_IN_NAMES.sub("_", job.name)
    return Bundle(f"{name}-{now_ms()}.zip", _zipped(f"{name}/", texts))


def _thread_dump(context: Context, user: Principal, job_id: str) -> DiagnosticAnswer:
    """Returns the stacks of the job's processes.

    Raises:
        RoleTooLowError: The user may not look into jobs.
        KeyscaleError: No driver answers.
    """
    if not user.may_act_as(Role.OPERATOR):
        raise RoleTooLowError(f"thread dumps need the role {Role.OPERATOR}")
    wanted = DiagnosticRequest(kind=DiagnosticKind.THREAD_DUMP)
    return diagnostics.take(context, user, job_id, wanted, seconds=THREAD_DUMP_SECONDS_MAX)


def masked(value: Any, mask: Mask, name: str = "") -> Any:
    """Masks secrets in all texts of a JSON value.

    `name` is the name of the field with the value.
    """
    if isinstance(value, dict):
        return {mask.redact(key): masked(each, mask, key) for key, each in value.items()}
    if isinstance(value, list):
        return [masked(each, mask, name) for each in value]
    return redact_named(name, mask.redact(value)) if isinstance(value, str) else value


def _mask_of(context: Context, job_id: str) -> Mask:
    """Returns the mask of the secrets that a job's texts may have."""
    with context.reads() as session:
        job = jobs.require_job(session, job_id)
        attempt = attempts.latest(session, job.id)
        used = revisions.in_use(session, job, 0 if attempt is None else attempt.number)
        secrets = context.launcher.secrets_of(job.id, 0 if attempt is None else attempt.run_number, used)
    return Mask(secrets)


def _zipped(directory: str, texts: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(directory + name, text)
    return content.getvalue()
