"""Drivers' logs: their ends, parts and matches.

A log comes from the replica that has started the driver.
"""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import httpx

from keyscale.address_proof import AddressNotProvenError, Challenge, ProvenTransport
from keyscale.certificates import trusted_certificates
from keyscale.db.repositories import attempts, replicas, revisions
from keyscale.jobs.protocol.redaction import Mask, masked
from keyscale.vocabulary import AttemptStage

from ..access.forwarded_requests import SCHEME, ForwardedRequest
from ..errors import AttemptNotFoundError, LogNotHereError, TooManyInFlightError
from ..jobs.jobs import require_job
from ..maintenance.announcer import replica_id
from .schemas import LogAnswer, LogMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from keyscale.jobs.protocol.redaction import Span

    from ..access.principal import Principal
    from ..control_plane.context import Context

MATCHES_MAX = 500
MATCH_CHARACTERS_MAX = 2000
SEARCHED_BYTES_MAX = 4 << 20
"""The bytes that one request searches, which takes half a second of CPU; the next request continues."""
CHARACTER_BYTES_MAX = 4
_UNDECODED = re.compile("[\udc80-\udcff]")
_WINDOW_BYTES = 1 << 20
_UNFINISHED_BYTES = 4096
"""The part of a line that is being written which is not shown before the line has ended, or has grown by as much."""
_FORWARD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LogPart:
    """The part of a log that a client asks for.

    Attributes:
        attempt: The attempt; None: the attempt that runs the job, or else the last attempt.
        tail_bytes: How much of the end, without an offset.
        offset: Where the part begins; None: with the first line that begins in the end.
        limit_bytes: Maximum length of the part, with an offset.
        search: A text, case ignored; the lines with it are returned instead of the part.
    """

    attempt: int | None = None
    tail_bytes: int = 64 << 10
    offset: int | None = None
    limit_bytes: int = 64 << 10
    search: str | None = None


class LogText:
    """A log with secrets masked, in parts with arbitrary ends.

    Masking looks beyond a part's ends, so parts never show more of a secret than the whole log does, and consecutive
    parts form the whole log. A character belongs to the part in which it begins, and so does a mask.

    Args:
        read: Reads some bytes from an offset on.
        size: The log's size in bytes.
        mask: Masks secrets.
        begin: The offset of the first remaining byte.
        is_whole: Whether the log's last line is complete without a line end.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], size: int, mask: Mask, *, begin: int = 0, is_whole: bool = True
    ) -> None:
        self._read, self.size, self._mask, self._begin, self._is_whole = read, size, mask, begin, is_whole

    def part(self, begin: int, length: int) -> LogLines:
        """Returns the lines or piece of a line from an offset on.

        The part ends with a line's end if it has one.

        Args:
            begin: The offset. A piece that was deleted is left out.
            length: Maximum number of bytes; the rest of a character may exceed it.
        """
        around = CHARACTER_BYTES_MAX * self._mask.reach_characters
        gone = max(0, self._begin - begin)
        begin, length = max(self._begin, min(begin, self.size)), max(0, length - gone)
        first = max(self._begin, begin - around)
        content = self._read(first, begin - first + length + around)[: self.size - first]
        begin = _character_end(content, begin - first)
        end = _character_end(content, max(begin, min(begin + length, len(content))))
        if end < len(content) or not self._is_whole:  # else the log ends here
            line_end = content.rfind(b"\n", begin, end) + 1
            if line_end > 0:
                end = line_end
            elif first + end >= self.size:  # a line that is being written; in its last part a secret may have begun
                drawn = content.rfind(b"\r", begin, end) + 1  # a progress bar draws itself again and again
                end = drawn or _character_end(content, max(begin, end - max(around, _UNFINISHED_BYTES)))
        text = _decoded(content)
        at = len(_decoded(content[:begin]))
        to = at + len(_decoded(content[begin:end]))
        return LogLines(first + begin, first + end, content[begin:end], text, self._mask.spans_of_part(text), at, to)

    def end(self, length: int) -> LogLines:
        """Returns the last lines or a piece of the last line.

        Args:
            length: Maximum number of bytes.
        """
        begin = max(self._begin, self.size - length)
        if begin > self._begin:
            begin += max(0, self._read(begin - 1, length).find(b"\n"))
        return self.part(begin, length)


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines of a log.

    Attributes:
        begin: The offset of the first line.
        end: The offset after the last line.
        content: The bytes between them.
        around: The text of these bytes and their surroundings.
        masked: The masked spans in the text.
        at: Where the lines begin in the text.
        to: Where the lines end in the text.
    """

    begin: int
    end: int
    content: bytes
    around: str
    masked: list[Span]
    at: int
    to: int

    @property
    def text(self) -> str:
        """The text that is shown."""
        return self._shown(self.at, self.to)

    @property
    def lines(self) -> Iterator[tuple[int, int, str]]:
        """Yields each line's begin, the next line's begin, and its masked text."""
        offset, at = self.begin, self.at
        for line in self.content.split(b"\n"):
            to = at + len(_decoded(line))
            after = min(offset + len(line) + 1, self.end)
            yield offset, after, self._shown(at, to)
            offset, at = after, to + 1

    def _shown(self, at: int, to: int) -> str:
        return _UNDECODED.sub("\N{REPLACEMENT CHARACTER}", masked(self.around, self.masked, at, to))


@dataclass(frozen=True, slots=True)
class _Replica:
    """Another replica, which has the log.

    Attributes:
        id: Its id, which its place gives.
        url: Its address.
        key: What all replicas of the database know.
    """

    id: str
    url: str
    key: str = field(repr=False)

    @classmethod
    def find(cls, session: Session, name: str) -> _Replica | None:
        """Returns a replica that is alive."""
        url = replicas.url_of(session, name)
        return None if url is None else cls(name, url, replicas.shared_key(session))

    def ask(self, context: Context, user: Principal, job_id: str, part: LogPart) -> LogAnswer:
        """Asks for a part of a log for a user.

        The replica first proves that it is the replica with this id. It checks the user's rights again.

        Raises:
            LogNotHereError: The replica does not answer, or another program does.
            TooManyInFlightError: The replica answers other searches.
        """
        query = httpx.QueryParams({name: value for name, value in asdict(part).items() if value is not None})
        request = httpx.Request("GET", f"{self.url}/v1/jobs/{job_id}/logs", params=query)
        path = request.url.raw_path.removeprefix(httpx.URL(self.url).raw_path.rstrip(b"/")).decode()
        token = ForwardedRequest.of(user, target=self.id, method="GET", path=path).token(self.key)
        trusted = trusted_certificates(context.settings.ca_file)
        challenge = Challenge(self.url, "/proofs/replica", self.key, subject=self.id)
        transport = ProvenTransport(challenge, httpx.HTTPTransport(verify=trusted, trust_env=False))
        try:
            with httpx.Client(transport=transport, trust_env=False, timeout=_FORWARD_TIMEOUT_S) as client:
                answer = client.get(request.url, headers={"Authorization": f"{SCHEME} {token}"})
            if answer.status_code == httpx.codes.OK:
                return LogAnswer.model_validate_json(answer.content)
            reason = answer.json().get("detail", "")
            if answer.status_code == TooManyInFlightError.status:
                raise TooManyInFlightError(reason)
        except AddressNotProvenError as error:
            reason = str(error)
        except (httpx.HTTPError, ValueError) as error:
            reason = type(error).__name__
        raise LogNotHereError(f"the control plane at {self.url}, which has the log, does not show it: {reason}")


def show(context: Context, user: Principal, reference: str, part: LogPart) -> LogAnswer:
    """Shows a part of a driver's log.

    Its path is made of the job's id and a number, never of text from a client.

    Args:
        context: The control plane.
        user: The sender.
        reference: The job.
        part: The part.

    Raises:
        JobNotFoundError: The job does not exist.
        AttemptNotFoundError: The job has no such attempt.
        LogNotHereError: The log was deleted, or its replica does not answer.
        TooManyInFlightError: Other searches are in progress.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        number = part.attempt
        attempt = attempts.latest(session, job.id) if number is None else attempts.find(session, job.id, number)
        used = revisions.in_use(session, job, attempt.number) if attempt is not None else []
        is_here = attempt is None or attempt.launched_on in {None, context.launcher.place}
        other = None if is_here or attempt is None else _Replica.find(session, replica_id(attempt.launched_on or ""))
    if attempt is None:
        raise AttemptNotFoundError("the job has never been started" if number is None else "no attempt has this number")
    if not is_here:
        if other is None:
            raise LogNotHereError(f"the driver was started on {attempt.launched_on}, where no control plane answers")
        return other.ask(context, user, job.id, replace(part, attempt=attempt.number))
    mask = Mask(context.launcher.secrets_of(job.id, attempt.run_number, used))
    place = nullcontext() if part.search is None else context.searches.place(user.id)
    with place, context.launcher.log(job.id, attempt.run_number) as log:
        if log.end == 0 and attempt.stage is AttemptStage.ENDED:
            raise LogNotHereError("the driver has written no log, or it was deleted")
        is_whole = attempt.stage is AttemptStage.ENDED or part.search is not None
        text = LogText(log.read, log.end, mask, begin=log.begin, is_whole=is_whole)
        return _answer(text, part, attempt.number)


def _answer(log: LogText, part: LogPart, attempt: int) -> LogAnswer:
    if part.search is not None:
        end, matches = search(log, part.offset or 0, part.search)
        return LogAnswer(
            attempt=attempt,
            text="",
            offset=part.offset or 0,
            next_offset=end,
            size_bytes=log.size,
            truncated=False,
            matches=matches,
        )
    lines = log.end(part.tail_bytes) if part.offset is None else log.part(part.offset, part.limit_bytes)
    return LogAnswer(
        attempt=attempt,
        text=lines.text,
        offset=lines.begin,
        next_offset=lines.end,
        size_bytes=log.size,
        truncated=lines.begin > 0,
    )


def search(log: LogText, begin: int, wanted: str) -> tuple[int, list[LogMatch]]:
    """Returns where the search has ended, and the matching lines.

    Long lines are cut. Masked text is not found.
    """
    found: list[LogMatch] = []
    pattern, before = re.compile(re.escape(wanted), re.IGNORECASE), ""
    at, last = begin, min(log.size, begin + SEARCHED_BYTES_MAX)
    while at < last:
        part = log.part(at, _WINDOW_BYTES)
        if part.end == at:
            break
        text = before + part.text
        for offset, after, rest in part.lines if pattern.search(text) else ():
            line, before = before + rest, ""
            if (match := pattern.search(line)) is not None:
                begins = max(0, match.end() - MATCH_CHARACTERS_MAX)
                found.append(LogMatch(offset=offset, text=line[begins : begins + MATCH_CHARACTERS_MAX]))
                if len(found) == MATCHES_MAX:
                    return after, found
        at, unfinished = part.end, text.rpartition("\n")[2]  # the text may be where a long line was cut
        before = unfinished[max(0, len(unfinished) - len(wanted) + 1) :]
    return min(at, log.size), found


def _decoded(content: bytes) -> str:
    """Decodes bytes to text that keeps its length wherever bytes are cut.

    A byte that is not part of a character becomes one character.
    """
    return content.decode(errors="surrogateescape")


def _character_end(content: bytes, at: int) -> int:
    """Moves a place inside a character to the character's end."""
    for begin in range(max(0, at - CHARACTER_BYTES_MAX + 1), at):
        for end in range(at + 1, min(len(content), begin + CHARACTER_BYTES_MAX) + 1):
            with suppress(UnicodeDecodeError):
                if len(content[begin:end].decode()) == 1:
                    return end
    return at
