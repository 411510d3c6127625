"""A driver's wait for its assignment.

A driver that starts beside a running job is a standby. It is told the job's program first, so that it can run the
script and check the targets while the old driver works.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..control.reporter import HEARTBEAT_INTERVAL_SECONDS
from ..errors import AttemptOverError, ControlError, ControlRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.messages import Assignment, AttachRequest, AttachResponse
    from ..control.channel import ControlChannel
    from ..preparation.warm_up import WarmUp

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Attachment:
    """Asks for work until an assignment arrives.

    It warms Spark up meanwhile.

    Args:
        channel: The connection to the control plane.
        request: The request for work.
        warm_up: The warm-up of a driver that waits.
        on_assigned: Called when the assignment is there.
        sleep: Waits between two requests; gets the seconds.

    Raises from each method:
        ControlRefusedError: The control plane does not know this driver.
        AttemptOverError: The control plane no longer wants this driver.
    """

    def __init__(
        self,
        channel: ControlChannel,
        request: AttachRequest,
        warm_up: WarmUp,
        *,
        on_assigned: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._channel = channel
        self._request = request
        self._warm_up = warm_up
        self._on_assigned = on_assigned
        self._sleep = sleep

    def first(self, on_warm: Callable[[], None]) -> AttachResponse | None:
        """Returns the first answer with an assignment or a preview.

        Returns None if the driver is to end.

        Args:
            on_warm: Called with each answer once Spark is warm.
        """
        return self._wait(on_warm, is_preview_wanted=True)

    def assignment(self, on_warm: Callable[[], None]) -> Assignment | None:
        """Waits for the assignment.

        Returns None if the driver is to end. `on_warm` is as for `first`.
        """
        response = self._wait(on_warm, is_preview_wanted=False)
        return None if response is None else response.assignment

    def _wait(self, on_warm: Callable[[], None], *, is_preview_wanted: bool) -> AttachResponse | None:
        request = self._request.model_copy(update={"wants_preview": is_preview_wanted})
        while True:
            response = self._ask(request)
            if response is None:
                self._sleep(_RETRY_SECONDS)
                continue
            if response.decision == "exit":
                return None
            if response.decision == "run" and response.assignment is not None:
                given = response.assignment
                logger.info("assigned attempt %d of job %s", given.attempt, given.job_id)
                self._warm_up.finish()
                self._on_assigned()
                return response
            self._warm_up.start()
            if is_preview_wanted and response.preview is not None:
                return response
            if self._warm_up.done:
                on_warm()
            self._sleep(min(response.retry_after_ms / 1000, HEARTBEAT_INTERVAL_SECONDS))

    def _ask(self, request: AttachRequest) -> AttachResponse | None:
        try:
            return self._channel.attach(request)
        except (AttemptOverError, ControlRefusedError):
            raise
        except ControlError as error:
            logger.warning("no answer to the request for work: %s", error)
            return None
