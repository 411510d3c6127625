"""A stream tells its reader what has changed of its subject, within the reader's scope, until its credential ends."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from keyscale.api.access import credentials
from keyscale.api.access.credentials import Credential, lapsed
from keyscale.api.access.principal import Principal
from keyscale.api.control_plane import change_feed as change_feed_module
from keyscale.api.control_plane import subscriber as subscriber_module
from keyscale.api.control_plane.change_feed import CHECK_S, ChangeFeed
from keyscale.api.control_plane.subscriber import EVERY_TOPIC, JOBS_NAMED_MAX, Subject, Subscriber, Topic
from keyscale.api.errors import TooManyInFlightError
from keyscale.api.events.stream_routes import EventStream
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories.job_versions import JobVersions
from keyscale.vocabulary import OperationStatus, Role
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_TEAM = JobScope(labels={"team": "a"})
BOTH = {Topic.JOB, Topic.METRICS}


class Told:
    """A subscriber that keeps what it is told."""

    def __init__(self, subject: Subject, scope: JobScope, credential: Credential) -> None:
        self.subject, self.credential = subject, credential
        self.user = Principal("id", "ann", Role.VIEWER, scope)
        self.feed: list[Any] = []

    def tell(self, topics: Any = (), job_ids: Any = (), *, operation: Any = None, is_away: bool = False) -> None:
        if is_away:
            self.feed.append("away")
        elif operation is not None:
            self.feed.append(operation["status"])
        else:
            self.feed.append((set(topics), None if job_ids is None else sorted(job_ids)))

    def end(self, event: str | None = None) -> None:
        self.feed.append(f"end: {event}")

    def take(self) -> list[Any]:
        taken, self.feed = self.feed, []
        return taken


class Database:
    """The versions of jobs and the operations that a poll finds."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobVersions] = {}
        self.watched: dict[str, dict[str, str | None]] = {}
        self.operations: dict[str, OperationStatus] = {}
        self.over: set[Credential] = set()
        self.checked: list[set[Credential]] = []
        self.is_away = False
        self.now_s = 100.0
        self.feed = ChangeFeed(
            cast("Any", self.session), cast("Any", self.read_operations), streams_max=3, streams_of_user_max=2
        )

    @contextmanager
    def session(self) -> Iterator[Any]:
        if self.is_away:
            raise OperationalError("", {}, Exception())
        yield None

    def read_operations(self, _: Any, wanted: set[str]) -> dict[str, Any]:
        def answer(status: OperationStatus) -> Any:
            return SimpleNamespace(model_dump=lambda mode: {"status": status, "mode": mode})

        return {name: answer(self.operations[name]) for name in wanted if name in self.operations}

    def put(self, job_id: str, version: str, metrics: str = "", team: str = "a") -> None:
        topics = {"job": version, "metrics": metrics}
        self.jobs[job_id] = JobVersions(job_id, f"{job_id}-name", f'{{"team":"{team}"}}', topics)

    def watch(self, job_id: str, **versions: str) -> None:
        self.watched[job_id] = {**dict.fromkeys(EVERY_TOPIC), **versions}

    def listen(self, subject: Subject, scope: JobScope = EVERYTHING, expires: int | None = None) -> Told:
        told = Told(subject, scope, Credential(expires))
        self.feed._subscribers.add(cast("Any", told))
        return told


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()

    def find_lapsed(_: Any, given: set[Credential]) -> set[Credential]:
        database.checked.append(given)
        return database.over

    def of_jobs(_: Any, wanted: set[str]) -> dict[str, Any]:
        return {job_id: dict(database.watched[job_id]) for job_id in wanted if job_id in database.watched}

    monkeypatch.setattr(change_feed_module, "lapsed", find_lapsed)
    monkeypatch.setattr(change_feed_module.time, "monotonic", lambda: database.now_s)
    monkeypatch.setattr(change_feed_module.job_versions, "of_all_jobs", lambda _: dict(database.jobs))
    monkeypatch.setattr(change_feed_module.job_versions, "of_jobs", of_jobs)
    return database


def test_a_reader_of_all_jobs_is_told_the_jobs_of_the_scope_that_have_changed(database: Database) -> None:
    everyone, of_team = database.listen(Subject()), database.listen(Subject(), OF_TEAM)
    for job_id, team in (("1", "a"), ("2", "b"), ("3", "a")):
        database.put(job_id, "old", team=team)
    database.feed.poll()
    assert everyone.take() == of_team.take() == [(BOTH, None)], "what came before is not known"
    database.feed.poll()
    assert everyone.take() == of_team.take() == []
    database.put("1", "old", "metrics", team="a")
    database.put("2", "new", team="b")
    database.feed.poll()
    assert (everyone.take(), of_team.take()) == ([(BOTH, ["1", "2"])], [({Topic.METRICS}, ["1"])])
    del database.jobs["2"]
    database.put("4", "new", team="a")
    database.feed.poll()
    assert (everyone.take(), of_team.take()) == ([(BOTH, ["2", "4"])], [(BOTH, ["4"])])


def test_changes_while_no_reader_was_there_are_unknown_to_the_next_reader(database: Database) -> None:
    first, of_one = database.listen(Subject()), database.listen(Subject("1"))
    database.put("1", "old")
    database.watch("1")
    database.feed.poll()
    for told in (first, of_one):
        database.feed.drop(cast("Any", told))
    database.feed.poll()
    database.put("2", "new")
    later, of_one_again = database.listen(Subject()), database.listen(Subject("1"))
    database.feed.poll()
    assert later.take() == [(BOTH, None)]
    assert of_one_again.take() == [(set(EVERY_TOPIC), ["1"])], "it may have changed meanwhile"


def test_a_reader_of_one_job_is_told_each_topic_and_that_the_job_is_gone(database: Database) -> None:
    told, other = database.listen(Subject("1")), database.listen(Subject("2"))
    database.watch("1", events="5")
    database.watch("2")
    database.feed.poll()
    assert (told.take(), other.take()) == ([(set(EVERY_TOPIC), ["1"])], [(set(EVERY_TOPIC), ["2"])])
    database.watch("1", events="6", operations="c")
    database.feed.poll()
    assert (told.take(), other.take()) == ([({Topic.EVENTS, Topic.OPERATIONS}, ["1"])], [])
    del database.watched["1"]
    database.feed.poll()
    assert (told.take(), other.take()) == (["end: gone"], [])


def test_a_reader_of_an_operation_is_told_its_state_until_it_has_ended(database: Database) -> None:
    told, gone = database.listen(Subject(operation_id="o")), database.listen(Subject(operation_id="x"))
    database.operations["o"] = OperationStatus.IN_PROGRESS
    database.feed.poll()
    assert (told.take(), gone.take()) == (["IN_PROGRESS"], ["end: gone"])
    database.feed.poll()
    assert told.take() == []
    database.operations["o"] = OperationStatus.FAILED
    database.feed.poll()
    assert told.take() == ["FAILED", "end: None"]


def test_credentials_are_checked_every_few_seconds_and_lapsed_credentials_end_their_streams(
    database: Database,
) -> None:
    kept, ended = database.listen(Subject("1"), expires=1), database.listen(Subject("1"), expires=2)
    database.watch("1")
    database.over = {Credential(2)}
    database.feed.poll()
    assert "end: over" not in kept.take()
    assert ended.take()[0] == "end: over"
    database.now_s += CHECK_S - 0.1
    database.feed.poll()
    assert database.checked == [{Credential(1), Credential(2)}]
    database.now_s += 0.1
    database.feed.poll()
    assert len(database.checked) == 2


def test_readers_are_told_once_that_the_database_is_away_and_read_everything_again_afterwards(
    database: Database,
) -> None:
    of_all, of_one = database.listen(Subject()), database.listen(Subject("1"))
    database.watch("1")
    database.feed.poll()
    of_all.take(), of_one.take()
    database.is_away = True
    for _ in range(2):
        database.feed.poll()
    assert of_all.take() == of_one.take() == ["away"]
    database.is_away = False
    for _ in range(2):
        database.feed.poll()
    assert (of_all.take(), of_one.take()) == ([(set(EVERY_TOPIC), None)], [(set(EVERY_TOPIC), ["1"])])


def test_a_user_and_all_users_have_so_many_streams_and_a_closed_one_makes_room(database: Database) -> None:
    async def play() -> None:
        def opened(user: str) -> Subscriber:
            return database.feed.open(Subject(), Principal(user, user, Role.VIEWER), Credential(None))

        first, _, third = opened("ann"), opened("ann"), opened("bob")
        for user in ("ann", "bob"):
            with pytest.raises(TooManyInFlightError):
                opened(user)
        database.feed.drop(third)
        with pytest.raises(TooManyInFlightError):
            opened("ann")
        opened("bob")
        database.feed.drop(first)
        opened("ann")
        assert database.feed.streams == 3
        database.feed.end_all()
        database.feed.drop(next(iter(database.feed._subscribers)))
        late = opened("carl")
        await asyncio.sleep(0)
        assert late._is_ending, "its reader comes back to another replica"

    run_coroutine(play())


@pytest.mark.parametrize("end", ["disconnected", "unsent", "cancelled"])
def test_a_stream_makes_room_however_it_ends(database: Database, end: str) -> None:
    async def play() -> None:
        subscriber = database.feed.open(Subject(), Principal("ann", "ann", Role.VIEWER), Credential(None))
        context: Any = SimpleNamespace(change_feed=database.feed)
        is_open = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await is_open.wait()
            if end != "disconnected":
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)
            if message["type"] == "http.response.body":
                is_open.set()
                if end == "unsent":
                    raise ConnectionResetError

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        answer = asyncio.create_task(EventStream(context, subscriber, 60.0)(scope, receive, send))
        await is_open.wait()
        if end == "cancelled":
            answer.cancel()
        await asyncio.wait([answer])
        assert database.feed.streams == 0

    run_coroutine(play())


@pytest.mark.parametrize(
    ("status", "is_ending"),
    [
        (OperationStatus.PENDING_APPROVAL, False),
        (OperationStatus.IN_PROGRESS, False),
        (OperationStatus.COMPLETED, True),
        (None, False),
    ],
)
def test_a_stream_of_an_operation_that_has_ended_tells_its_state_and_ends(
    database: Database, status: OperationStatus | None, is_ending: bool
) -> None:
    operation = None if status is None else {"status": status.value}

    async def play() -> None:
        user = Principal("id", "ann", Role.VIEWER)
        opened = database.feed.open(Subject(operation_id="o"), user, Credential(None), operation=operation)
        assert opened._is_ending is is_ending
        told = [] if status is None else [f'event: operation\ndata: {{"status":"{status}"}}\n\n']
        assert opened._drain() == told

    run_coroutine(play())


def test_news_that_were_not_sent_are_merged_and_too_many_jobs_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_module, "now_ms", lambda: 7)

    async def play() -> None:
        reader = Subscriber(Subject(), Principal("id", "ann", Role.VIEWER), Credential(None))

        def text(names: str, jobs: str) -> list[str]:
            return [f'event: change\ndata: {{"at_ms":7,"topics":[{names}],"job_ids":{jobs}}}\n\n']

        async def drained() -> list[str]:
            await asyncio.sleep(0)
            return reader._drain()

        assert await drained() == text('"job","metrics"', "null"), "a reader that has just come knows nothing"
        assert await drained() == []
        reader.tell({Topic.METRICS, Topic.EVENTS}, ["2"])
        reader.tell({Topic.METRICS}, ["1"])
        assert await drained() == text('"metrics"', '["1","2"]')
        many = [str(number) for number in range(JOBS_NAMED_MAX)]
        reader.tell({Topic.JOB}, many)
        assert '"job_ids":["0",' in (await drained())[0]
        reader.tell({Topic.JOB}, [*many, "one more"])
        assert await drained() == text('"job"', "null")
        reader.tell(is_away=True)
        assert await drained() == ["event: away\ndata: {}\n\n"]
        reader.tell({Topic.JOB}, ["1"])
        reader.end("over")
        assert await drained() == ["event: over\ndata: {}\n\n"], "a reader without rights learns nothing more"
        reader.end()
        messages = [message async for message in reader.messages(5.0)]
        assert [message.partition(":")[0] for message in messages] == ["retry"]

    run_coroutine(play())


def test_the_last_state_of_an_operation_is_kept_until_it_is_sent() -> None:
    async def play() -> list[list[str]]:
        reader = Subscriber(Subject(operation_id="o"), Principal("id", "ann", Role.VIEWER), Credential(None))
        found = []
        for told in ([{"a": 1}, {"a": 2}], [{"a": 3}, None], [None]):
            for operation in told:
                reader.tell(operation=operation)
            await asyncio.sleep(0)
            found.append(reader._drain())
        reader.end()
        await asyncio.sleep(0)
        return [*found, reader._drain()]

    sent = [[f'event: operation\ndata: {{"a":{number}}}\n\n'] for number in (2, 3)]
    assert run_coroutine(play()) == [*sent, [], []]


def test_a_stream_lasts_as_long_as_its_reader_wants_and_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def play() -> list[str]:
        reader = Subscriber(Subject(operation_id="o"), Principal("id", "ann", Role.VIEWER), Credential(None))
        loop = SimpleNamespace(time=lambda: sum(waited))
        monkeypatch.setattr(reader, "_loop", loop)

        async def wait_for(news: Any, limit_s: float) -> None:
            news.close()
            waited.append(limit_s)
            raise TimeoutError

        monkeypatch.setattr(subscriber_module, "asyncio", SimpleNamespace(wait_for=wait_for))
        return [message async for message in reader.messages(25.0)]

    first, *signs = run_coroutine(play())
    assert first == f"retry: {subscriber_module.RECONNECT_MS}\n\n"
    assert signs == [": the stream lasts\n\n"] * 3
    assert waited == [10.0, 10.0, 5.0]


@pytest.mark.parametrize(
    ("expires_at_ms", "token", "cookie", "is_lapsed"),
    [
        (None, None, None, False),
        (1001, None, None, False),
        (1000, None, None, True),
        (None, "valid", None, False),
        (None, "revoked", None, True),
        (None, None, "valid session", False),
        (None, None, "valid", True),
        (None, "valid session", None, True),
        (1000, "valid", None, True),
    ],
)
def test_a_credential_lapses_with_its_time_its_token_or_its_session(
    monkeypatch: pytest.MonkeyPatch, expires_at_ms: int | None, token: str | None, cookie: str | None, is_lapsed: bool
) -> None:
    session: Any = None

    def valid(one: str) -> Any:
        return lambda _, given, at_ms: given & {one} if at_ms == 1000 else set()

    monkeypatch.setattr(credentials, "shared_now_ms", lambda: 1000)
    monkeypatch.setattr(credentials.tokens, "valid", valid("valid"))
    monkeypatch.setattr(credentials.browser_sessions, "valid", valid("valid session"))
    credential, expired = Credential(expires_at_ms, token, cookie), Credential(1, "valid")
    found = lapsed(session, {credential, expired, Credential(None)})
    assert (credential in found, expired in found) == (is_lapsed, True)


def test_a_poll_that_fails_ends_no_later_one(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    feed = Database().feed
    polls: list[int] = []

    def poll() -> None:
        polls.append(len(polls))
        if len(polls) == 1:
            raise ValueError("a defect")
        feed._closing.set()

    monkeypatch.setattr(change_feed_module, "POLL_S", 0)
    monkeypatch.setattr(feed, "poll", poll)
    monkeypatch.setattr(feed, "_subscribers", {Told(Subject(), EVERYTHING, Credential(None))})
    feed.start()
    feed._thread.join()
    assert (polls, caplog.messages) == ([0, 1], ["a poll for changes failed"])
    feed.close()
