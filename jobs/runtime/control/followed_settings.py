"""The settings that a job follows while it runs.

The settings of its assignment apply until the control plane sends others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.messages import LiveSettings
from ...protocol.specification import followed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.messages import Assignment
    from .driver_status import DriverStatus


class FollowedSettings:
    """The newest settings.

    They are replaced as a whole, so every thread may read them.

    Args:
        assignment: Provides the settings at the start.
        status: Shows the revision of the settings.

    Attributes:
        on_change: Called when the settings change.
    """

    def __init__(self, assignment: Assignment, status: DriverStatus) -> None:
        self._status = status
        self.on_change: Callable[[], None] = lambda: None
        self.assigned(assignment)

    def assigned(self, assignment: Assignment) -> None:
        """Replaces the settings by the settings of an assignment."""
        self._running = assignment.spec
        self.follow(LiveSettings(revision=assignment.revision, spec=assignment.spec))

    @property
    def newest(self) -> LiveSettings:
        return self._newest

    def follow(self, settings: LiveSettings) -> None:
        """Replaces the settings that need no restart."""
        spec = followed(self._running, settings.spec)
        self._newest: LiveSettings = settings.model_copy(update={"spec": spec})
        self._status.follows(settings.revision)
        self.on_change()
