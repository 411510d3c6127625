"""A value is given to the parameter of its name, if the function has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.argument_names import Crossing, crossings
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("api", "db", "jobs", "state", "src/keyscale")
DELIBERATE = {
    Crossing("StateComparison", "subtask", "store"),
    Crossing("_without", "others", "rows"),
    Crossing("matched_operators", "targets", "program.operators"),
    Crossing("Artifact", "uploaded_by", "user.id"),
    Crossing("Checkpoint", "checkpointed_size", "state_size"),
    Crossing("Checkpoints", "reported_records", "context.status.input_records"),
    Crossing("Decision", "target", "facts.parallelism"),
    Crossing("JobRecord", "revised_at_ms", "revision.created_at_ms"),
    Crossing("MapStateDescriptor", "kind", "name"),
    Crossing("MapStateDescriptor", "name", "whole.key_type"),
    Crossing("ReplaceAttempt", "consecutive_failures", "failures"),
    Crossing("ScalingDecision", "confirmed_at_ms", "facts.at_ms"),
    Crossing("Subscription", "owner_id", "user.id"),
    Crossing("ValueStateDescriptor", "name", "codec.type"),
    Crossing("_Piece", "shown_key", "key"),
    Crossing("_Reduction", "results", "names"),
    Crossing("_condition", "reason", "facts.status"),
    Crossing("_is_still", "path", "file"),
    Crossing("_newest", "covered_ms", "self._ms"),
    Crossing("_refreshed", "objects", "store"),
    Crossing("_round", "words", "lane"),
    Crossing("add", "created_by", "user.name"),
    Crossing("dict", "checkpointed_bytes", "checkpoint.checkpointed_size"),
    Crossing("dict", "kind", "MetricKind(kind).name"),
    Crossing("make_directory", "enter", "is_shared"),
    Crossing("may_follow", "following", "status"),
    Crossing("other_names", "given", "part.schema.names"),
    Crossing("read_keys", "statement", "wanted"),
    Crossing("read_page", "statement", "wanted"),
    Crossing("record", "diagnostic_kind", "command.kind"),
    Crossing("record", "job", "job_id"),
    Crossing("record_done", "to", "before"),
    Crossing("replace", "forked_from", "manifest.job_id"),
    Crossing("replace", "shares", "width"),
    Crossing("spill_runs", "directory", "self._directory.path"),
    Crossing("upload_snapshot", "copies", "known"),
    Crossing("with_histories", "before", "before._places"),
}
"""Values that go to another parameter on purpose. Look twice before you add one."""


def test_a_value_goes_to_the_parameter_of_its_name() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = list(crossings(paths))
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {crossing}" for path, line, crossing in found if crossing not in DELIBERATE
    ]
    assert not unknown, "\n".join(unknown)
    assert DELIBERATE - {crossing for _, _, crossing in found} == set(), "there is no such call any more"


def test_crossed_arguments_are_found(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "def span(start_ms, end_ms, *, job_id): ...\n"
        "def save(row, job, begin):\n"
        "    span(row.start_ms, begin, job_id=job.id)\n"
        "    span(row.end_ms, begin, job_id=job.id)\n"
        "    span(begin, row.job_id, job_id=job.id)\n"
        "    row.update(size=row.files, files=1)\n"
        "    return {'size': row.size, 'files': row.size}\n"
    )
    assert [crossing for _, _, crossing in crossings([source])] == [
        ("span", "start_ms", "row.end_ms"),
        ("span", "end_ms", "row.job_id"),
        ("update", "size", "row.files"),
        ("dict", "files", "row.size"),
    ]
