"""The route of the settings that jobs have."""

from fastapi import APIRouter

from keyscale.jobs.protocol.declared_settings import declared_settings

from ..access.identities import User
from ..control_plane.guarded_route import GuardedRoute
from .schemas.setting import SettingAnswer, SettingList

router = APIRouter(prefix="/settings", tags=["settings"], route_class=GuardedRoute)


@router.get("")
def list_settings(_: User) -> SettingList:
    """Lists the settings of a job, with types, bounds and defaults."""
    return SettingList(settings=[SettingAnswer.model_validate(each) for each in declared_settings()])
