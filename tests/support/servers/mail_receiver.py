"""A mail server that keeps the mails which it receives."""

from __future__ import annotations

import socketserver
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class MailReceiver:
    """A mail server.

    Attributes:
        port: Its port on 127.0.0.1.
        refused: Addresses that it refuses.
        received: The texts of the mails.
    """

    port: int
    refused: set[str] = field(default_factory=set)
    received: list[str] = field(default_factory=list)


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    """Serves the part of SMTP that a client without TLS and login needs."""

    class Dialogue(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 ready")
            for line in iter(self.rfile.readline, b""):
                command = line.decode().strip()
                verb = command[:4].upper()
                if verb == "DATA":
                    self.say("354 go on")
                    mail = iter(self.rfile.readline, b".\r\n")
                    receiver.received.append(b"".join(mail).decode())
                    self.say("250 taken")
                elif verb == "RCPT" and any(f"<{address}>" in command for address in receiver.refused):
                    self.say("550 no such user")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 fine")

        def say(self, answer: str) -> None:
            self.wfile.write(f"{answer}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dialogue) as server:
        server.daemon_threads = True
        receiver = MailReceiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
