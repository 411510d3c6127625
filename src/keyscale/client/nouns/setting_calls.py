"""The settings that a job has."""

from __future__ import annotations

from keyscale.api.jobs.schemas.setting import SettingList

from ..call import Call
from ..method import Method, Noun, S


class Settings(Noun[S]):
    """The settings that a job has."""

    @Method
    def list(self) -> Call[SettingList]:
        """Lists all settings of a job."""
        return Call("GET", "/v1/settings", SettingList)
