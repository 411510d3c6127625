"""Specifications in the database and in requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from keyscale.jobs.protocol import specification
from keyscale.jobs.protocol.specification import ChangeClass, JobSpec, differences, known_settings

from .errors import RequestInvalidError, SettingFixedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Revision


def spec_of(revision: Revision) -> JobSpec:
    """Returns the specification of a revision.

    A setting that no version has any more is left out.
    """
    return JobSpec.model_validate(known_settings(revision.spec))


def changed(present: JobSpec, change: Mapping[str, Any]) -> JobSpec:
    """Returns a specification after a merge patch of a request.

    Raises:
        RequestInvalidError: A value is not allowed, or a setting does not exist.
        SettingFixedError: A job keeps a setting that the patch changes.
    """
    try:
        wanted = specification.changed(present, change)
    except ValidationError as error:
        raise RequestInvalidError.of(error, "body.spec") from None
    for each in differences(present, wanted):
        if each.change_class is ChangeClass.FIXED:
            raise SettingFixedError(f"{each.path} is {each.before}, and stays so")
    return wanted
