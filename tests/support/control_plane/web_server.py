"""An application behind the web server of the control plane, in a thread of the test."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from keyscale.api.settings import Settings
from keyscale.api.web.serve import listen, server_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI


@contextmanager
def web_server(home: Path, app: FastAPI) -> Iterator[tuple[str, int]]:
    """Serves an application as the control plane does; yields its address."""
    settings = Settings(home=home, host="127.0.0.1", port=0)
    server = uvicorn.Server(server_config(app, settings))
    with listen(settings) as listener:
        listener.listen()  # so that clients need not wait until the server does
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()
