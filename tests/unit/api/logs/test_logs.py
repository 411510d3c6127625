"""Parts of logs show nothing of a secret wherever they are cut, and searches find what readers may see."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from keyscale.address_proof import AddressNotProvenError, Challenge
from keyscale.api.access.forwarded_requests import authenticate_forwarded, looks_forwarded
from keyscale.api.access.principal import Principal
from keyscale.api.errors import AttemptNotFoundError, LogNotHereError, TooManyInFlightError
from keyscale.api.logs import logs, routes
from keyscale.api.logs.logs import MATCH_CHARACTERS_MAX, LogPart, LogText, search
from keyscale.api.maintenance.announcer import replica_id
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Attempt, Job
from keyscale.jobs.protocol.redaction import MASK, SECRET_CHARACTERS_MIN, Mask, redact
from keyscale.vocabulary import AttemptStage, Role
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = b"first\nsecond line\nthird\nunfinished"
SECRET = {"KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders"}
ALPHABET = "abé\n 𝄞"


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: content[offset : offset + length]


def log_of(content: bytes, environment: dict[str, str] | None = None, *, is_whole: bool = True) -> LogText:
    return LogText(reader(content), len(content), Mask(environment or {}), is_whole=is_whole)


def lines(begin: int, length: int, *, is_whole: bool = True) -> tuple[int, int, str]:
    found = log_of(LOG, is_whole=is_whole).part(begin, length)
    return found.begin, found.end, found.text


def parts(log: LogText, begin: int, lengths: list[int]) -> list[str]:
    """Reads a log to its end, in parts of these lengths in turn."""
    found: list[str] = []
    while begin < log.size:
        part = log.part(begin, lengths[len(found) % len(lengths)])
        assert part.end > begin, "a reader gets on"
        assert len(found) == 0 or part.begin == begin, "without a gap"
        begin = part.end
        found.append(part.text)
    return found


def test_a_part_ends_with_a_whole_line() -> None:
    assert lines(0, 1000) == (0, len(LOG), LOG.decode())
    assert lines(0, 1000, is_whole=False) == (0, 24, "first\nsecond line\nthird\n")
    assert lines(6, 14) == (6, 18, "second line\n")
    assert lines(0, 8) == (0, 6, "first\n")


def test_the_end_of_a_log_begins_with_a_whole_line() -> None:
    assert [log_of(LOG).end(length).text for length in (1000, 17, 16, 15, 5)] == [
        LOG.decode(),
        "third\nunfinished",
        "third\nunfinished",
        "unfinished",
        "ished",
    ]


def test_a_reader_that_follows_gets_every_byte_once_however_short_its_parts() -> None:
    for length in range(1, 40):
        assert "".join(parts(log_of(LOG), 0, [length])) == LOG.decode(), length


def test_a_line_longer_than_a_part_is_shown_in_pieces() -> None:
    content = b"x" * 50 + b"\nlast\n"
    assert parts(log_of(content), 0, [20]) == ["x" * 20, "x" * 20, "x" * 10 + "\nlast\n"]


def test_the_end_of_a_line_that_is_being_written_is_left_for_later() -> None:
    log = log_of(b"first\n" + b"x" * 50, is_whole=False)
    assert [log.part(begin, 20).text for begin in (0, 6, 46)] == ["first\n", "x" * 20, ""]


@pytest.mark.parametrize("between", [b"\r", b" "])
def test_a_long_line_that_is_being_written_is_shown_but_for_its_last_part(between: bytes) -> None:
    progress = b"".join(b"progress %d%s" % (number, between) for number in range(20_000)) + b"of-the-ord"
    log = log_of(b"first\n" + progress, SECRET, is_whole=False)
    shown = log.end(64 << 10)
    assert len(shown.text) > 10_000
    assert shown.text.endswith("progress 19999\r") == (between == b"\r")
    assert log.part(shown.end, 64 << 10).text == "", "it is left for later"
    ended = log_of(b"first\n" + progress + b"ers\n", SECRET, is_whole=False)
    assert shown.text + ended.part(shown.end, 64 << 10).text == ended.part(shown.begin, 128 << 10).text


def test_an_offset_beyond_the_end_is_the_end() -> None:
    assert lines(10_000, 10) == (len(LOG), len(LOG), "")


def test_bytes_that_are_no_text_are_shown_as_such_wherever_they_are_cut() -> None:
    content = b"\xff\xc3(\xf0\x9d\x84\x9e \xf0\x9d\n\x80\x80"
    whole = "".join(parts(log_of(content), 0, [1000]))
    assert all("".join(parts(log_of(content), 0, [length])) == whole for length in range(1, 12))
    assert whole == "\ufffd\ufffd(𝄞 \ufffd\ufffd\n\ufffd\ufffd"


@given(
    st.lists(st.text(ALPHABET, min_size=6, max_size=12), min_size=1, max_size=3),
    st.data(),
)
def test_no_choice_of_parts_shows_more_of_a_secret_than_the_whole_log(secrets: list[str], data: st.DataObject) -> None:
    environment = {f"KEYSCALE_JOB_SECRET_{number}": secret for number, secret in enumerate(secrets)}
    piece = st.sampled_from(secrets) | st.text(ALPHABET, max_size=12) | st.just("password=") | st.just("token: Bearer ")
    content = "".join(data.draw(st.lists(piece, max_size=10))).encode()
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    log = log_of(content, environment)
    whole = log.part(0, len(content)).text
    assert "".join(parts(log, 0, lengths)) == whole
    offset = data.draw(st.integers(0, len(content)))
    assert whole.endswith("".join(parts(log, offset, lengths)))
    for secret in map(str.strip, secrets):
        assert len(secret) < SECRET_CHARACTERS_MIN or secret not in whole.split(MASK)


@given(st.integers(0, 200), st.integers(1, 60), st.booleans())
def test_no_offset_and_no_limit_show_a_piece_of_a_secret(offset: int, length: int, is_whole: bool) -> None:
    content = ("x" * 61 + "12-34-é5é67" + "y" * 40 + " token=8901234567 " + "z" * 30 + "12-34-é5").encode()
    log = log_of(content, {"KEYSCALE_JOB_SECRET_ORDERS": "12-34-é5é67"}, is_whole=is_whole)
    for part in (log.part(offset, length), log.end(length)):
        assert not set(part.text) & set("0123456789-é\ufffd"), part.text


@pytest.mark.parametrize("character", ["é", "一", "𠀀"], ids=["two bytes", "three bytes", "four bytes"])
def test_a_long_password_of_wide_characters_is_masked_in_every_part(character: str) -> None:
    content = f"password={character * 8000} last".encode()
    log = log_of(content)
    assert [log.part(len(content) * ninth // 9, 100).text for ninth in range(1, 9)] == [""] * 8


def test_a_part_of_the_cut_line_of_a_long_secret_is_masked() -> None:
    secret = "".join(f"-{number}" for number in range(10_000))
    content = f"key {secret} end".encode()
    log = log_of(content, {"KEYSCALE_JOB_SECRET_ORDERS": secret})
    assert [log.part(offset, 100).text for offset in (100, 20_000, 40_000)] == ["", "", ""]
    assert log.part(0, 100).text == "key *****"


def test_a_masked_part_is_what_the_whole_text_shows() -> None:
    text = 'password: token: hunter2x\n"token": "Bearer hunter2x"\nof-the-orders\n'
    shown = 'password: ***** *****\n"token": "***** *****"\n*****\n'
    assert redact(text, SECRET) == log_of(text.encode(), SECRET).part(0, 1000).text == shown


def test_a_search_finds_lines_with_their_offsets_in_any_case() -> None:
    end, found = search(log_of(LOG), 0, "LINE")
    assert (end, [(each.offset, each.text) for each in found]) == (len(LOG), [(6, "second line")])
    assert search(log_of(LOG), 18, "line")[1] == []


def test_a_search_cannot_find_out_a_secret() -> None:
    content = b"the key is 12-34-56-78\n"
    log = log_of(content, {"KEYSCALE_JOB_SECRET_ORDERS": "12-34-56-78"})
    assert [each.text for each in search(log, 0, "key")[1]] == ["the key is *****"]
    for offset in range(len(content)):
        assert not any(search(log, offset, guess)[1] for guess in ("1", "8", "-34-", "12-34-56-78", " 1")), offset


def test_a_search_sees_nothing_of_a_secret_at_the_edge_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_WINDOW_BYTES", 40)
    for before in range(20, 45):
        log = log_of(b"x" * before + b"of-the-orders" + b"y" * 50, SECRET)
        assert search(log, 0, "rs")[1] == search(log, 0, "of")[1] == [], before


def test_a_search_finds_text_across_the_edge_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_WINDOW_BYTES", 40)
    for before in range(20, 90):
        found = search(log_of(b"x" * before + b" hit " + b"y" * 50), 0, "hit")[1]
        assert ["hit" in each.text for each in found] == [True], before


def test_a_search_looks_at_a_limited_part_and_returns_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"hit\n" * 100
    monkeypatch.setattr(logs, "MATCHES_MAX", 10)
    end, found = search(log_of(content), 0, "hit")
    assert (end, len(found), found[-1].offset) == (40, 10, 36)
    monkeypatch.setattr(logs, "MATCHES_MAX", 1000)
    monkeypatch.setattr(logs, "SEARCHED_BYTES_MAX", 100)
    monkeypatch.setattr(logs, "_WINDOW_BYTES", 40)
    end, found = search(log_of(content), 0, "hit")
    assert (end, len(found)) == (120, 30)


def test_a_search_ends_where_a_log_has_become_shorter() -> None:
    """The older part of a log that grows too long is deleted, perhaps during a search."""
    reads = 0

    def read(_offset: int, _length: int) -> bytes:
        nonlocal reads
        reads += 1
        return b""

    assert search(LogText(read, 10_000, Mask({})), 100, "hit") == (100, [])
    assert reads < 10


def test_of_a_long_line_the_part_with_the_text_is_returned() -> None:
    content = b"x" * 10_000 + b" hit " + b"y" * 10_000 + b"\n" + b"hit" + b"z" * 5000
    _, found = search(log_of(content), 0, "hit")
    assert [(each.offset, "hit" in each.text, len(each.text)) for each in found] == [
        (0, True, MATCH_CHARACTERS_MAX),
        (20_006, True, MATCH_CHARACTERS_MAX),
    ]


def test_what_is_no_longer_kept_is_left_out_of_every_part() -> None:
    written = b"".join(b"line %04d\n" % number for number in range(100))
    kept = 500

    def read(offset: int, length: int) -> bytes:
        assert offset >= kept
        return written[offset : offset + length]

    log = LogText(read, len(written), Mask({}), begin=kept)
    gone = log.part(0, 100)
    assert (gone.begin, gone.end, gone.text) == (kept, kept, "")
    half_gone = log.part(kept - 50, 100)
    assert (half_gone.begin, half_gone.end) == (kept, kept + 50)
    assert half_gone.text == written[kept : kept + 50].decode()
    assert log.end(10_000).text == written[kept:].decode()
    assert search(log, 0, "line 0049") == (len(written), [])
    assert [match.offset for match in search(log, 0, "line 0050")[1]] == [500]


@pytest.mark.parametrize("search", [None, "line"])
def test_a_log_is_shown_without_the_secrets_of_its_run(monkeypatch: pytest.MonkeyPatch, search: str | None) -> None:
    attempt = Attempt(number=4, run=2, stage=AttemptStage.ENDED, launched_on="here")
    monkeypatch.setattr(logs, "require_job", lambda *_: Job(id="job"))
    monkeypatch.setattr(logs.attempts, "latest", lambda _, job_id: {"job": attempt}[job_id])
    monkeypatch.setattr(logs.revisions, "in_use", lambda _, job, number: [job.id, number])
    content = b"a line of-the-orders\n"
    log = SimpleNamespace(read=reader(content), begin=0, end=len(content))
    launcher = SimpleNamespace(
        place="here",
        secrets_of=lambda *asked: {("job", 2, ("job", 4)): SECRET}[*asked[:2], tuple(asked[2])],
        log=lambda *run: nullcontext({("job", 2): log}[run]),
    )
    context: Any = SimpleNamespace(
        reads=nullcontext, launcher=launcher, searches=SimpleNamespace(place=lambda _: nullcontext())
    )
    answer = logs.show(context, Principal("id", "ann", Role.VIEWER), "flights", LogPart(search=search))
    assert (answer.attempt, answer.text + "".join(f"{each.text}\n" for each in answer.matches or ())) == (
        4,
        f"a line {MASK}\n",
    )


class Replicas:
    """A log on another replica, which answers as a test wants."""

    URL = "https://there:1/keyscale"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: httpx.Response | Exception = httpx.Response(200, json=ANSWER)
        self.is_alive = True
        self.asked: list[httpx.Request] = []
        self.challenges: list[Any] = []
        self.attempt: Attempt | None = Attempt(number=4, run=2, stage=AttemptStage.ACTIVE, launched_on="there:/home")
        there = replica_id("there:/home")
        url_of = {there: lambda: self.URL if self.is_alive else None}
        monkeypatch.setattr(logs, "require_job", lambda _, name: {"flights": Job(id="job")}[name])
        monkeypatch.setattr(logs.attempts, "latest", lambda _, job_id: {"job": self.attempt}[job_id])
        monkeypatch.setattr(logs.attempts, "find", lambda _, *key: {("job", 4): self.attempt}.get(key))
        monkeypatch.setattr(logs.revisions, "in_use", lambda *_: [])
        monkeypatch.setattr(logs.replicas, "url_of", lambda _, name: url_of[name]())
        monkeypatch.setattr(logs.replicas, "shared_key", lambda _: "the key")
        monkeypatch.setattr(logs, "trusted_certificates", lambda ca_file: f"certificates of {ca_file}")
        monkeypatch.setattr(logs.httpx, "HTTPTransport", lambda **options: options)
        monkeypatch.setattr(logs, "ProvenTransport", self._transport)
        self.context: Any = SimpleNamespace(
            reads=nullcontext, launcher=SimpleNamespace(place="here"), settings=SimpleNamespace(ca_file="ca.pem")
        )

    def _transport(self, challenge: Any, options: dict[str, Any]) -> httpx.MockTransport:
        assert options == {"verify": "certificates of ca.pem", "trust_env": False}
        self.challenges.append(challenge)
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def show(self, part: LogPart) -> Any:
        return logs.show(self.context, USER, "flights", part)


ANSWER = {"attempt": 4, "text": "a line\n", "offset": 5, "next_offset": 12, "size_bytes": 12, "truncated": True}
USER = Principal("me", "ann", Role.VIEWER, JobScope(frozenset({"flights"}), {"team": "a"}))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(monkeypatch)


@pytest.mark.parametrize(
    ("part", "query"),
    [
        (LogPart(), "attempt=4&tail_bytes=65536&limit_bytes=65536"),
        (LogPart(4, offset=5, limit_bytes=7), "attempt=4&tail_bytes=65536&offset=5&limit_bytes=7"),
        (LogPart(search="a b", tail_bytes=9), "attempt=4&tail_bytes=9&limit_bytes=65536&search=a+b"),
    ],
)
def test_a_log_of_another_replica_is_asked_for_in_the_name_of_the_user(
    elsewhere: Replicas, part: LogPart, query: str
) -> None:
    assert elsewhere.show(part).model_dump(exclude_none=True) == ANSWER
    [request], [challenge] = elsewhere.asked, elsewhere.challenges
    assert str(request.url) == f"{Replicas.URL}/v1/jobs/job/logs?{query}"
    there = replica_id("there:/home")
    assert challenge == Challenge(Replicas.URL, "/proofs/replica", "the key", subject=there)
    received = Request(
        {
            "type": "http",
            "method": "GET",
            "raw_path": b"/v1/jobs/job/logs",
            "query_string": query.encode(),
            "headers": [(b"authorization", request.headers["Authorization"].encode())],
        }
    )
    assert looks_forwarded(received)
    user = authenticate_forwarded(received, "the key", there)
    assert (user.id, user.name, user.role, user.scope) == (USER.id, USER.name, USER.role, USER.scope)


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (httpx.Response(429, json={"detail": "too many searches"}), TooManyInFlightError, "^too many searches$"),
        (httpx.Response(404, json={"detail": "it was deleted"}), LogNotHereError, f"{Replicas.URL}.*: it was deleted$"),
        (httpx.Response(502, text="a proxy"), LogNotHereError, "does not show it: JSONDecodeError"),
        (httpx.ConnectTimeout("slow"), LogNotHereError, "does not show it: ConnectTimeout"),
        (AddressNotProvenError("another program"), LogNotHereError, "does not show it: another program"),
    ],
)
def test_a_replica_that_does_not_show_its_log_is_named_with_the_reason(
    elsewhere: Replicas, answer: httpx.Response | Exception, error: type[Exception], reason: str
) -> None:
    elsewhere.answer = answer
    with pytest.raises(error, match=reason):
        elsewhere.show(LogPart())


def test_a_log_whose_replica_has_ended_and_a_run_that_never_was_have_their_own_refusals(elsewhere: Replicas) -> None:
    elsewhere.is_alive = False
    with pytest.raises(LogNotHereError, match="started on there:/home, where no control plane answers"):
        elsewhere.show(LogPart())
    with pytest.raises(AttemptNotFoundError, match="no attempt has this number"):
        elsewhere.show(LogPart(attempt=9))
    elsewhere.attempt = None
    with pytest.raises(AttemptNotFoundError, match="never been started"):
        elsewhere.show(LogPart())


class Written:
    """The log of an attempt on this host, of which the first line was deleted."""

    DELETED = b"deleted\n"
    KEPT = b"second\nthe key\nunfinished key"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempt = Attempt(number=4, run=2, stage=AttemptStage.ACTIVE, launched_on=None)
        self.content = self.DELETED + self.KEPT
        monkeypatch.setattr(logs, "require_job", lambda *_: Job(id="job"))
        monkeypatch.setattr(logs.attempts, "latest", lambda *_: self.attempt)
        monkeypatch.setattr(logs.revisions, "in_use", lambda *_: [])
        launcher = SimpleNamespace(
            place="here", secrets_of=lambda *_: {}, log=lambda *run: nullcontext({("job", 2): self.log()}[run])
        )
        searches = SimpleNamespace(place=lambda user_id: {"me": nullcontext()}[user_id])
        self.context: Any = SimpleNamespace(reads=nullcontext, launcher=launcher, searches=searches)

    def log(self) -> Any:
        begin = min(len(self.content), len(self.DELETED))
        return SimpleNamespace(read=reader(self.content), begin=begin, end=len(self.content))

    def show(self, **part: Any) -> dict[str, Any]:
        return logs.show(self.context, USER, "flights", LogPart(**part)).model_dump(exclude={"attempt"})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(monkeypatch)


def test_each_form_of_a_log_begins_where_it_is_kept_and_says_where_it_goes_on(written: Written) -> None:
    size, kept = len(written.content), len(written.DELETED)
    common = {"size_bytes": size, "matches": None}
    whole = {"text": "second\nthe key\n", "offset": kept, "next_offset": kept + 15, "truncated": True, **common}
    assert written.show() == written.show(offset=0) == whole
    part = {"text": "the key\n", "offset": kept + 7, "next_offset": kept + 15, "truncated": True, **common}
    assert written.show(offset=kept + 7, tail_bytes=1, limit_bytes=10) == part
    assert written.show(tail_bytes=17, limit_bytes=1)["text"] == ""
    assert written.show(tail_bytes=24, limit_bytes=1)["text"] == "the key\n"
    assert written.show(offset=kept, limit_bytes=7)["text"] == "second\n"
    written.attempt.stage = AttemptStage.ENDED
    assert written.show() == {**whole, "text": written.KEPT.decode(), "next_offset": size}


def test_a_search_begins_at_its_offset_and_finds_text_in_the_line_that_is_being_written(written: Written) -> None:
    size, kept = len(written.content), len(written.DELETED)
    rest = {"text": "", "next_offset": size, "size_bytes": size, "truncated": False}
    unfinished = {"offset": kept + 15, "text": "unfinished key"}
    found = [{"offset": kept + 7, "text": "the key"}, unfinished]
    assert written.show(search="KEY") == {**rest, "offset": 0, "matches": found}
    assert written.show(search="KEY", offset=kept + 15) == {**rest, "offset": kept + 15, "matches": [unfinished]}


def test_an_empty_log_is_shown_while_its_driver_may_write_and_is_gone_afterwards(written: Written) -> None:
    written.content = b""
    empty = {"text": "", "offset": 0, "next_offset": 0, "size_bytes": 0, "truncated": False, "matches": None}
    assert written.show() == empty
    written.attempt.stage = AttemptStage.ENDED
    with pytest.raises(LogNotHereError, match="has written no log, or it was deleted"):
        written.show()


def test_the_route_of_a_log_asks_for_the_part_that_the_query_names(monkeypatch: pytest.MonkeyPatch) -> None:
    part = run_coroutine(routes._log_part(1, 2, 3, 4, "x"))
    assert part == LogPart(attempt=1, tail_bytes=2, offset=3, limit_bytes=4, search="x")
    monkeypatch.setattr(logs, "show", lambda *given: given)
    context: Any = "context"
    shown: Any = routes.show_log(context, USER, "flights", part)
    assert shown == ("context", USER, "flights", part)
