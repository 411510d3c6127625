"""Artifacts: uploaded programs."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import ArtifactKind

from ..shapes import Answer, ListAnswer, example


class ArtifactAnswer(Answer):
    """One immutable version of an uploaded file."""

    model_config = example(
        id="5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        name="departures",
        version=1,
        filename="departures.py",
        kind="PYTHON",
        sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        size_bytes=2411,
        created_at_ms=1_795_000_000_000,
        uploaded_by="ada",
        used_by=["departures"],
    )

    id: str
    name: str
    version: int
    filename: str
    kind: ArtifactKind
    sha256: str
    size_bytes: int
    created_at_ms: int
    uploaded_by: str | None = Field(description="Name of the user who uploaded it; null once its event is forgotten.")
    used_by: list[str] = Field(description="Names of the jobs with a revision that uses it, if the user may see them.")


class PlatformAnswer(Answer):
    """The Python, the system and the packages that every job has."""

    model_config = example(
        python_version="3.11.7",
        platforms=["linux_x86_64", "manylinux_2_36_x86_64"],
        packages={"numpy": "2.4.6", "pyspark": "4.3.0"},
        jar_packages=["kafka"],
    )

    python_version: str
    platforms: list[str] = Field(description="Names of the operating system in the tags of wheels that fit.")
    packages: dict[str, str] = Field(
        description=("Versions of the platform's own packages; a job cannot bring other versions.")
    )
    jar_packages: list[str] = Field(description="Packages of jars, which a job names as `package:NAME`.")


class ArtifactList(ListAnswer):
    """All artifacts, the newest first."""

    artifacts: list[ArtifactAnswer]
