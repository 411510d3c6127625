"""The driver's temporary credentials for the object store.

The credentials reach only the driver's own job, and expire. All processes of the driver read them from a file, through
AWS's own configuration: `credential_process`. AWS clients read the file again before the credentials expire; by then
the driver has replaced the file.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.clock import now_ms

from ..errors import AttemptOverError, ControlRefusedError, ControlUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .channel import ControlChannel

logger = logging.getLogger(__name__)

CONFIGURATION_VARIABLE = "AWS_CONFIG_FILE"
RENEWED_VARIABLE = "KEYSCALE_STORE_CREDENTIALS_RENEWED"
"""Set if the control plane grants credentials; the driver then writes the file of `AWS_CONFIG_FILE`."""
CREDENTIALS_FILE = "store-credentials.json"
_RETRY_SECONDS = 2.0


class StoreAccess:
    """A thread that keeps the credentials fresh.

    It asks for new credentials when half of their life is over.

    Args:
        channel: The connection to the control plane.
        configuration: The configuration file that AWS clients read. The credentials are written beside it.
    """

    def __init__(self, channel: ControlChannel, configuration: Path) -> None:
        self._channel = channel
        self._configuration = configuration
        self._file = configuration.with_name(CREDENTIALS_FILE)
        self._expires_at_ms = 0
        self._thread = threading.Thread(target=self._run, name="store-access", daemon=True)

    @classmethod
    def of(cls, channel: ControlChannel, variables: Mapping[str, str]) -> StoreAccess | None:
        """Returns the access of a driver with granted credentials.

        Returns None if the environment does not ask for granted credentials.
        """
        if not variables.get(RENEWED_VARIABLE):
            return None
        return cls(channel, Path(variables[CONFIGURATION_VARIABLE]))

    def open(self) -> None:
        """Waits for the first credentials, then keeps them fresh.

        The wait has no time limit.

        Raises:
            AttemptOverError: The control plane no longer wants this attempt.
            ControlRefusedError: The control plane does not know this driver.
        """
        _write(self._configuration, f"[default]\ncredential_process = cat {shlex.quote(str(self._file))}\n")
        while True:
            try:
                self.renew()
            except ControlUnreachableError as error:
                logger.warning("no credentials of the object store yet: %s", error)
                time.sleep(_RETRY_SECONDS)
            else:
                break
        self._thread.start()

    def renew(self) -> None:
        """Replaces the credentials.

        New credentials also reach what the attempt has been told to restore since.

        Raises:
            ControlUnreachableError, ControlRefusedError, AttemptOverError: As a message to the control plane.
        """
        fresh = self._channel.store_credentials()
        self._expires_at_ms = fresh.expires_at_ms
        _write(
            self._file,
            json.dumps(
                {
                    "Version": 1,
                    "AccessKeyId": fresh.access_key_id,
                    "SecretAccessKey": fresh.secret_access_key,
                    "SessionToken": fresh.session_token,
                    "Expiration": datetime.fromtimestamp(fresh.expires_at_ms / 1000, UTC).isoformat(),
                }
            ),
        )

    def _run(self) -> None:
        while True:
            time.sleep(max(_RETRY_SECONDS, (self._expires_at_ms - now_ms()) / 2000))
            try:
                self.renew()
            except AttemptOverError:
                return
            except (ControlUnreachableError, ControlRefusedError, OSError) as error:
                logger.warning("the credentials of the object store were not renewed (%s); trying again", error)


def _write(file: Path, text: str) -> None:
    """Writes a file atomically that only its owner can read."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    fresh.replace(file)
