"""The contents of an artifact, from the inspection of its upload.

They are stored with it as JSON.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ArtifactContents(BaseModel):
    """The contents of a zip or a wheel; empty for other files.

    Attributes:
        runnable: Whether a zip has a main.py or __main__.py. An older version of Keyscale accepted only such zips.
        modules: The names by which its modules and packages are imported, those inside packages left out.
        distribution: A wheel's name, as its author writes it; None for other files.
        version: A wheel's version.
        requires: A wheel's requirements, as its metadata writes them.
        requires_python: The Pythons that a wheel is for, as its metadata writes them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    runnable: bool = True
    modules: tuple[str, ...] = ()
    distribution: str | None = None
    version: str | None = None
    requires: tuple[str, ...] = ()
    requires_python: str = ""
