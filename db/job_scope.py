"""A scope: the jobs that a token's holder may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import or_, true

from .models import Job

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from sqlalchemy import ColumnElement


@dataclass(frozen=True, slots=True)
class JobScope:
    """A set of jobs, by their names and labels.

    A scope without names and labels covers every job.

    Attributes:
        jobs: Ids and names of jobs.
        labels: A job with all of these labels is covered.
        any_labels: A job with one of these labels (names and values) is covered.
    """

    jobs: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    any_labels: frozenset[tuple[str, str]] = frozenset()

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal scopes."""
        return self.jobs, frozenset(self.labels.items()), self.any_labels

    @property
    def is_everything(self) -> bool:
        return not self.jobs and not self.labels and not self.any_labels

    def covers(self, *, job_id: str, name: str, labels: Mapping[str, str]) -> bool:
        """Returns whether a job is in the scope."""
        if self.is_everything or not self.jobs.isdisjoint((job_id, name)):
            return True
        if not self.any_labels.isdisjoint(labels.items()):
            return True
        return bool(self.labels) and self.labels.items() <= labels.items()

    def criterion(self) -> ColumnElement[bool]:
        """Returns `covers` as a condition on the table of jobs."""
        if self.is_everything:
            return true()
        sets = [dict(self.labels)] if self.labels else []
        sets += [{key: value} for key, value in sorted(self.any_labels)]
        return or_(Job.id.in_(self.jobs), Job.name.in_(self.jobs), *(Job.labels.contains(labels) for labels in sets))


EVERYTHING = JobScope()
