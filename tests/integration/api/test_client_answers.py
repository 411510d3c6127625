"""The client reads the answers of a control plane as the models that they were written from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.client import Keyscale
    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

READS: dict[str, Callable[[Keyscale], Any]] = {
    "artifacts": lambda client: [client.artifacts.get(each.id) for each in client.artifacts.list()],
    "platform": lambda client: client.artifacts.platform(),
    "jobs": lambda client: [client.jobs.get(each.id) for each in client.jobs.list()],
    "attempts": lambda client: list(client.jobs.attempts("read")),
    "exceptions": lambda client: list(client.jobs.exceptions("read")),
    "key groups": lambda client: client.jobs.key_groups("read"),
    "series": lambda client: client.jobs.series("read"),
    "days": lambda client: client.jobs.days("read"),
    "user metrics": lambda client: client.jobs.user_metrics("read"),
    "operations": lambda client: [client.operations.get(str(each.id)) for each in client.operations.list("read")],
    "checkpoints": lambda client: [client.checkpoints.get("read", each.id) for each in client.checkpoints.list("read")],
    "statistics": lambda client: client.checkpoints.statistics("read"),
    "config": lambda client: client.checkpoints.config("read"),
    "comparison": lambda client: client.checkpoints.compare("read", 1, 2),
    "savepoints": lambda client: list(client.savepoints.list("read")),
    "revisions": lambda client: [client.revisions.get("read", each.number) for each in client.revisions.list("read")],
    "difference": lambda client: client.revisions.diff("read", 1, 2),
    "events": lambda client: [*client.events.list(), *client.events.list_of_job("read")],
    "tokens": lambda client: client.tokens.list(),
    "whoami": lambda client: client.tokens.whoami(),
    "secrets": lambda client: client.secrets.list(),
    "subscriptions": lambda client: [
        client.subscriptions.get(each.id) for each in client.subscriptions.list().subscriptions
    ],
    "deliveries": lambda client: [
        *client.subscriptions.deliveries(client.subscriptions.list().subscriptions[0].id, limit=1)
    ],
    "settings": lambda client: client.settings.list(),
    "replicas": lambda client: client.control_plane.replicas(),
}


@pytest.fixture(scope="module")
def client(platform: Platform) -> Keyscale:
    """A client of a control plane that has something of every kind."""
    platform.create_job("read", team="travel")
    platform.api.jobs.update("read", 1, spec={"parameters": {"password": "hunter2"}})
    snapshots = platform.snapshots_of("read")
    platform.note_metrics("read", [{}, {}])
    snapshots.take(1, {"shared/a": b"a"})
    snapshots.take(2, {"shared/b": b"b"}, "nightly")
    platform.api.jobs.start("read")
    platform.context.announcer.announce()
    platform.api.subscriptions.test(platform.api.subscriptions.create(target="https://alerts.example.com/hook").id)
    return platform.api


@pytest.mark.parametrize("name", READS)
def test_an_answer_is_read_as_its_model(client: Keyscale, name: str) -> None:
    found = READS[name](client)
    answers = found if isinstance(found, list) else [found]
    assert all(isinstance(each, BaseModel) for each in answers)
    assert answers or name == "exceptions", "the answers of this kind have been read"
