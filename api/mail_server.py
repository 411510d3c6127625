"""The mail server of the platform."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit


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
