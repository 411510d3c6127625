"""Mistakes at places of use: what is changed, what is left alone, and which tests are run for it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.mutants.reach import Reach
from tests.mutants.uses import Mistake, lines_of, mistakes_of, sampled

SOURCE = '''
@dataclass
class Times:
    started_ms: int
    ended_ms: int

def note(path: str, other: str, *, at: int = 0, until: int = 1) -> None: ...

def use(times: Times, log: list[str], base: dict[str, int], own: dict[str, int]) -> dict[str, int]:
    """Uses it."""
    logger.info("at %s", times.started_ms)
    if log:
        note(log[0], "b", at=times.started_ms, until=1)
    log.clear()
    if not base and own:
        raise ValueError(times.ended_ms)
    return {**base, **own} if own else base
'''


def written(folder: Path) -> Path:
    for package in ("api", "db", "jobs", "state"):
        (folder / package).mkdir()
        (folder / package / "uses.py").write_text(SOURCE)
    return folder


def test_mistakes_are_made_where_values_are_used(tmp_path: Path) -> None:
    mistakes = [mistake for mistake in mistakes_of(written(tmp_path)) if mistake.module == "keyscale.api.uses"]
    edits = [(mistake.kind, mistake.edit(SOURCE.encode())) for mistake in mistakes]
    call = 'note(log[0], "b", at=times.started_ms, until=1)'
    whole = "return {**base, **own} if own else base"
    assert {(kind, edit.before, edit.after) for kind, edit in edits} == {
        ("guard dropped", "if log:", "if True:"),
        ("guard negated", "if log:", "if not (log):"),
        ("statement dropped", call, "pass"),
        ("argument dropped", call, 'note(log[0], "b", until=1)'),
        ("arguments swapped", call, 'note("b", log[0], at=times.started_ms, until=1)'),
        ("arguments swapped", call, 'note(log[0], "b", at=1, until=times.started_ms)'),
        ("attribute", call, 'note(log[0], "b", at=times.ended_ms, until=1)'),
        ("order", call, 'note(log[-1], "b", at=times.started_ms, until=1)'),
        ("statement dropped", "log.clear()", "pass"),
        ("guard dropped", "if not base and own:", "if False:"),
        ("operand dropped", "if not base and own:", "if not base:"),
        ("operand dropped", "if not base and own:", "if own:"),
        ("choice dropped", whole, "return ({**base, **own})"),
        ("choice dropped", whole, "return (base)"),
        ("order", whole, "return {**own, **base} if own else base"),
    }
    assert {edit.function for _, edit in edits} == {"use"}
    for mistake in mistakes:
        ast.parse(mistake.applied(SOURCE.encode()))


def test_a_sample_takes_packages_by_their_lines_and_holds_the_smaller_samples_of_its_seed(tmp_path: Path) -> None:
    mistakes = mistakes_of(written(tmp_path))
    assert set(lines_of(tmp_path).values()) == {SOURCE.count("\n")}
    weights = {"api": 8, "db": 1, "jobs": 1, "state": 0}
    chosen = sampled(mistakes, 14, 5, weights)
    assert chosen[:9] == sampled(mistakes, 9, 5, weights)
    assert Counter(mistake.path.parts[0] for mistake in chosen).most_common(1)[0][0] == "api"
    assert set(sampled(mistakes, len(mistakes) + 1, 5, dict.fromkeys(weights, 1))) == set(mistakes)


def test_the_tests_of_a_mistake_reach_one_of_its_lines_and_come_with_the_fastest_first() -> None:
    path = Path("api/uses.py")
    reach = Reach({path: {3: {"slow", "red"}, 4: {"fast"}, 6: {"elsewhere"}}}, {"slow": 2, "fast": 1, "elsewhere": 1})
    assert reach.tests_of(path, (3, 5)) == ["fast", "slow"]
    assert reach.tests_of(Path("api/other.py"), (3, 5)) == []
    assert Mistake("order", path, "use", (3, 3), ((0, 1, b"x"),)).applied(b"abc") == b"xbc"
