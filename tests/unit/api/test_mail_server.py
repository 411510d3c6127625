"""A mail server is a URL among the settings."""

from __future__ import annotations

import pytest

from keyscale.api.mail_server import MailServer


def test_a_mail_server_is_read_from_its_url() -> None:
    assert MailServer.of_url("smtps://ann%40x:p%2Fw@mail.example.com/?from=keyscale@example.com") == MailServer(
        "mail.example.com", 465, "keyscale@example.com", "ann@x", "p/w", is_tls=True
    )
    plain = "smtp://ann@127.0.0.1/?from=k@example.com"
    assert MailServer.of_url(plain) == MailServer("127.0.0.1", 587, "k@example.com", "ann", "", is_tls=False)
    alone = MailServer("127.0.0.1", 25, "k@example.com", None, "", is_tls=False)
    assert MailServer.of_url("smtp://127.0.0.1:25/?from=k@example.com") == alone


@pytest.mark.parametrize("url", ["mail.example.com", "http://mail.example.com/?from=k@x.de", "smtp://mail.example.com"])
def test_another_form_of_a_mail_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="mail server"):
        MailServer.of_url(url)
