"""The server that takes the platform's mails."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from keyscale.certificates import trusted_certificates

from .sender import SECONDS_MAX, NotDeliveredError

if TYPE_CHECKING:
    from email.message import EmailMessage


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, with the account of the platform.

    Attributes:
        host: Its name.
        port: Its port.
        sender: The address in From.
        user: With which name the platform signs in; None: it does not.
        password: With which password.
        is_tls: Whether TLS begins with the connection, else by STARTTLS where the server offers it.
    """

    host: str
    port: int
    sender: str
    user: str | None = None
    password: str = field(default="", repr=False)
    is_tls: bool = False

    @classmethod
    def of_url(cls, url: str) -> MailServer:
        """Reads smtp://USER:PASSWORD@HOST:PORT/?from=ADDRESS, or smtps://.

        Raises:
            ValueError: The URL has another form.
        """
        parts = urlsplit(url)
        sender = parse_qs(parts.query).get("from", [""])[0]
        if parts.scheme not in {"smtp", "smtps"} or not parts.hostname or "@" not in sender:
            raise ValueError("not the URL of a mail server")
        is_tls = parts.scheme == "smtps"
        user = None if parts.username is None else unquote(parts.username)
        port = parts.port or (465 if is_tls else 587)
        return cls(parts.hostname, port, sender, user, unquote(parts.password or ""), is_tls)

    def send(self, mail: EmailMessage) -> None:
        """Sends a mail.

        Raises:
            NotDeliveredError: The server has not taken it.
        """
        certificates = trusted_certificates()
        try:
            with (
                smtplib.SMTP_SSL(self.host, self.port, timeout=SECONDS_MAX, context=certificates)
                if self.is_tls
                else smtplib.SMTP(self.host, self.port, timeout=SECONDS_MAX)
            ) as server:
                server.ehlo()
                if not self.is_tls and server.has_extn("starttls"):
                    server.starttls(context=certificates)
                if self.user is not None:
                    server.login(self.user, self.password)
                server.send_message(mail)
        except smtplib.SMTPRecipientsRefused:
            raise NotDeliveredError("the mail server refused the address") from None
        except (OSError, smtplib.SMTPException) as error:
            raise NotDeliveredError(f"the mail server failed: {type(error).__name__}") from None
