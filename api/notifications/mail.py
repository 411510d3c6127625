"""Sends mails through the platform's mail server."""

from __future__ import annotations

import smtplib
from typing import TYPE_CHECKING

from keyscale.certificates import trusted_certificates

from .http_sender import SECONDS_MAX, NotDeliveredError

if TYPE_CHECKING:
    from email.message import EmailMessage

    from ..mail_server import MailServer


def send(server: MailServer, mail: EmailMessage) -> None:
    """Sends a mail.

    Raises:
        NotDeliveredError: The server has not taken it.
    """
    certificates = trusted_certificates()
    try:
        with (
            smtplib.SMTP_SSL(server.host, server.port, timeout=SECONDS_MAX, context=certificates)
            if server.is_tls
            else smtplib.SMTP(server.host, server.port, timeout=SECONDS_MAX)
        ) as connection:
            connection.ehlo()
            if not server.is_tls and connection.has_extn("starttls"):
                connection.starttls(context=certificates)
            if server.user is not None:
                connection.login(server.user, server.password)
            connection.send_message(mail)
    except smtplib.SMTPRecipientsRefused:
        raise NotDeliveredError("the mail server refused the address") from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotDeliveredError(f"the mail server failed: {type(error).__name__}") from None
