"""A scope: the jobs that the holder of a token may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import or_, true

from keyscale.db.models import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement


@dataclass(frozen=True, slots=True)
class JobScope:
    """A set of jobs: the named ones, and those that have all of the labels. A scope without either covers every job.

    Attributes:
        jobs: Ids and names of jobs.
        labels: Labels that a job must have to be covered, unless it is named.
    """

    jobs: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        return not self.jobs and not self.labels

    def covers(self, *, job_id: str, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a job is in the scope."""
        if self.is_everything or not self.jobs.isdisjoint((job_id, name)):
            return True
        return bool(self.labels) and self.labels.items() <= labels.items()

    def criterion(self) -> ColumnElement[bool]:
        """Returns what `covers` says, as a condition on the table of jobs."""
        if self.is_everything:
            return true()
        named = or_(Job.id.in_(self.jobs), Job.name.in_(self.jobs))
        return or_(named, Job.labels.contains(dict(self.labels))) if self.labels else named


EVERYTHING = JobScope()
