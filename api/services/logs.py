"""Drivers' logs: their ends, parts and matches, from whichever replica has started the driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import httpx

from keyscale.api.errors import AttemptNotFoundError, LogNotHereError
from keyscale.api.schemas.job import LogAnswer, LogMatch
from keyscale.api.services.jobs import require_job
from keyscale.api.upkeep.announcer import replica_id
from keyscale.certificates import trusted_certificates
from keyscale.db.repositories import attempts, replicas, revisions
from keyscale.db.statuses import AttemptStage
from keyscale.jobs.protocol.redaction import Mask, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyscale.api.services.context import Context

FORWARDED_HEADER = "X-Keyscale-Forwarded"
MATCHES_MAX = 500
MATCH_CHARACTERS_MAX = 2000
SEARCHED_BYTES_MAX = 16 << 20
_WINDOW_BYTES = 1 << 20
_FORWARD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LogPart:
    """The part of a log that a client asks for.

    Attributes:
        attempt: The attempt; None: the latest one.
        tail_bytes: How much of the end, if there is no offset.
        offset: Where the part begins; a line that begins before it is left out.
        limit_bytes: How long the part may be, if there is an offset.
        search: A text, case ignored; the lines with it are returned instead of the part.
    """

    attempt: int | None = None
    tail_bytes: int = 64 << 10
    offset: int | None = None
    limit_bytes: int = 64 << 10
    search: str | None = None


@dataclass(frozen=True, slots=True)
class LogLines:
    """Whole lines of a log.

    Attributes:
        begin: The offset of the first line.
        end: The offset after the last one.
    """

    begin: int
    end: int
    content: bytes


def show(context: Context, reference: str, part: LogPart, headers: Mapping[str, str]) -> LogAnswer:
    """Shows a part of a driver's log. Its path is made of the job's id and a number, never of text from a client.

    Args:
        context: The control plane.
        reference: The job.
        part: The part.
        headers: Those of the request: another replica is asked in the name of its sender.

    Raises:
        JobNotFoundError: There is no such job.
        AttemptNotFoundError: It has no such attempt.
        LogNotHereError: No replica that answers has the log, or it was deleted.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        number = part.attempt
        attempt = attempts.latest(session, job.id) if number is None else attempts.find(session, job.id, number)
        used = revisions.in_use(session, job, attempt.number) if attempt is not None else []
        is_here = attempt is None or attempt.launched_on in {None, context.launcher.place}
        other = None if is_here or attempt is None else replicas.url_of(session, replica_id(attempt.launched_on or ""))
    if attempt is None:
        raise AttemptNotFoundError("the job has never been started" if number is None else "no attempt has this number")
    if not is_here:
        if other is None or FORWARDED_HEADER.lower() in {name.lower() for name in headers}:
            raise LogNotHereError(f"the driver was started on {attempt.launched_on}, where no control plane answers")
        return _ask(context, other, job.id, replace(part, attempt=attempt.number), headers)
    size = context.launcher.log_size(job.id, attempt.number)
    if size == 0 and attempt.stage is AttemptStage.ENDED:
        raise LogNotHereError("the driver has written no log, or it was deleted")
    secrets = context.launcher.secrets_of(job.id, attempt.number, used)
    environment = {**context.settings.store_environment, **secrets}

    def read(offset: int, length: int) -> bytes:
        return context.launcher.read_log(job.id, attempt.number, offset, length)

    is_whole = attempt.stage is AttemptStage.ENDED  # its last line is
    if part.search is not None:
        end, matches = search(read, size, part.offset or 0, part.search, environment)
        return LogAnswer(
            attempt=attempt.number,
            text="",
            offset=part.offset or 0,
            next_offset=end,
            size_bytes=size,
            truncated=False,
            matches=matches,
        )
    begin = max(0, size - part.tail_bytes) if part.offset is None else part.offset
    length = part.tail_bytes if part.offset is None else part.limit_bytes
    lines = whole_lines(read, size, begin, length, is_whole=is_whole)
    return LogAnswer(
        attempt=attempt.number,
        text=redact(lines.content.decode(errors="replace"), environment),
        offset=lines.begin,
        next_offset=lines.end,
        size_bytes=size,
        truncated=lines.begin > 0,
    )


def whole_lines(
    read: Callable[[int, int], bytes], size: int, begin: int, length: int, *, is_whole: bool = True
) -> LogLines:
    """Returns the lines that begin in a part of a log: a secret in a line that is cut could not be recognised.

    Args:
        read: Reads some bytes from an offset on.
        size: The log's size.
        begin: Where the part begins.
        length: How long it is. A line that is longer than the part is cut.
        is_whole: Whether the last line of the log is whole although nothing ends it.
    """
    begin = min(begin, size)
    if begin > 0 and read(begin - 1, 1) != b"\n":
        rest = read(begin, length)
        line_end = rest.find(b"\n")
        if line_end < 0:
            return LogLines(min(size, begin + len(rest)), min(size, begin + len(rest)), b"")
        begin, length = begin + line_end + 1, length - line_end - 1
    content = read(begin, length)
    if content.endswith(b"\n") or (is_whole and begin + len(content) >= size):
        return LogLines(begin, begin + len(content), content)
    line_end = content.rfind(b"\n")
    if line_end < 0 and begin + len(content) < size:
        return LogLines(begin, begin + len(content), content)  # else a reader would not get beyond it
    return LogLines(begin, begin + line_end + 1, content[: line_end + 1])


def search(
    read: Callable[[int, int], bytes], size: int, begin: int, wanted: str, environment: Mapping[str, str]
) -> tuple[int, list[LogMatch]]:
    """Returns the offset up to which was searched, and the lines with a text, long ones cut. Masked text is not found.

    The search ends early where the log has become shorter, since it has grown too long meanwhile.
    """
    found: list[LogMatch] = []
    mask = Mask(environment)
    at, last, text = begin, min(size, begin + SEARCHED_BYTES_MAX), wanted.lower()
    while at < last:
        lines = whole_lines(read, size, at, _WINDOW_BYTES)
        if lines.end == at:
            break
        offset = lines.begin
        for line in lines.content.splitlines(keepends=True):
            plain = line.decode(errors="replace").rstrip("\n")
            if text in plain.lower() and (place := (masked := mask.redact(plain)).lower().find(text)) >= 0:
                begins = max(0, place + len(text) - MATCH_CHARACTERS_MAX)
                found.append(LogMatch(offset=offset, text=masked[begins : begins + MATCH_CHARACTERS_MAX]))
                if len(found) == MATCHES_MAX:
                    return offset + len(line), found
            offset += len(line)
        at = lines.end
    return min(at, size), found


def _ask(context: Context, url: str, job_id: str, part: LogPart, headers: Mapping[str, str]) -> LogAnswer:
    """Asks the replica that has the log. It checks the sender again, and asks nobody else."""
    own = {name: value for name in ("authorization", "cookie") if (value := headers.get(name)) is not None}
    try:
        answer = httpx.get(
            f"{url}/jobs/{job_id}/logs",
            params={name: value for name, value in asdict(part).items() if value is not None},
            headers={**own, FORWARDED_HEADER: "1"},
            timeout=_FORWARD_TIMEOUT_S,
            verify=trusted_certificates(context.settings.ca_file),
            trust_env=False,
        )
        if answer.status_code == httpx.codes.OK:
            return LogAnswer.model_validate_json(answer.content)
        reason = answer.json().get("detail", "")
    except (httpx.HTTPError, ValueError) as error:
        reason = type(error).__name__
    raise LogNotHereError(f"the control plane at {url}, which has the log, does not show it: {reason}")
