"""A mail is sent over TLS where the server can, and signed in where the platform has an account."""

from __future__ import annotations

import smtplib
from dataclasses import replace
from email.message import EmailMessage
from typing import Any, Self

import pytest

from keyscale.api.mail_server import MailServer
from keyscale.api.notifications import mail
from keyscale.api.notifications.http_sender import SECONDS_MAX, NotDeliveredError

SERVER = MailServer("mail.example.com", 587, "keyscale@example.com")
MAIL = EmailMessage()


class Dialogue:
    """The dialogue with a mail server, which may offer TLS, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.offers_tls = False
        self.failure: Exception | None = None
        monkeypatch.setattr(mail, "trusted_certificates", lambda: "certificates")
        monkeypatch.setattr(mail.smtplib, "SMTP", lambda *of, **options: self._connect("plain", *of, **options))
        monkeypatch.setattr(mail.smtplib, "SMTP_SSL", lambda *of, **options: self._connect("TLS", *of, **options))

    def _connect(self, *of: Any, **options: Any) -> Self:
        self.steps.append((*of, options))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.steps.append("closed")

    def ehlo(self) -> None:
        """The server says what it can."""

    def has_extn(self, name: str) -> bool:
        return name == "starttls" and self.offers_tls

    def starttls(self, *, context: str) -> None:
        self.steps.append(f"TLS with {context}")

    def login(self, *account: str) -> None:
        self.steps.append(account)

    def send_message(self, sent: EmailMessage) -> None:
        assert sent is MAIL
        self.steps.append("sent")
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def dialogue(monkeypatch: pytest.MonkeyPatch) -> Dialogue:
    return Dialogue(monkeypatch)


PLAIN = ("plain", "mail.example.com", 587, {"timeout": SECONDS_MAX})
OVER_TLS = ("TLS", "mail.example.com", 587, {"timeout": SECONDS_MAX, "context": "certificates"})


@pytest.mark.parametrize("user", [None, "ann"])
@pytest.mark.parametrize(
    ("is_tls", "offers_tls", "steps"),
    [
        (False, False, [PLAIN]),
        (False, True, [PLAIN, "TLS with certificates"]),
        (True, True, [OVER_TLS]),
    ],
    ids=["plain", "upgraded", "TLS"],
)
def test_a_mail_is_sent_over_tls_where_the_server_can(
    dialogue: Dialogue, steps: list[Any], user: str | None, *, is_tls: bool, offers_tls: bool
) -> None:
    dialogue.offers_tls = offers_tls
    mail.send(replace(SERVER, is_tls=is_tls, user=user, password="p"), MAIL)  # noqa: S106 - a test's own
    signed_in = [] if user is None else [("ann", "p")]
    assert dialogue.steps == [*steps, *signed_in, "sent", "closed"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (smtplib.SMTPRecipientsRefused({}), "the mail server refused the address"),
        (smtplib.SMTPDataError(500, b"of-the-orders"), "the mail server failed: SMTPDataError"),
        (ConnectionResetError("of-the-orders"), "the mail server failed: ConnectionResetError"),
        (TimeoutError(), "the mail server failed: TimeoutError"),
    ],
)
def test_a_mail_that_is_not_taken_has_the_reason_and_none_of_the_servers_words(
    dialogue: Dialogue, failure: Exception, reason: str
) -> None:
    dialogue.failure = failure
    with pytest.raises(NotDeliveredError) as caught:
        mail.send(SERVER, MAIL)
    assert (str(caught.value), caught.value.is_final, dialogue.steps[-1]) == (reason, False, "closed")
