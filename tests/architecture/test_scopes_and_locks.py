"""A user's request finds only what the user's scope covers, and a transaction that writes about a job locks it.

Both are given to a call by name, so that they can be forgotten at each place of use.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNSCOPED = {
    ("artifacts.py", "delete", "artifacts.first_use"),  # a job outside of the scope keeps the artifact, too
    ("restore_sources.py", "_of_location", "jobs.find"),  # the owner may be deleted: its id is compared with the scope
}
UNLOCKED = {
    ("changed_keys.py", "change", "require_job"),  # a first look, which changes nothing
    ("drivers.py", "attach", "jobs.find"),  # these two lock the attempt, or change the diagnostic alone
    ("drivers.py", "report_diagnostic", "jobs.find"),
    ("savepoint_release.py", "_release", "jobs.find"),  # a first look, as well
}
WRITING = ("sessions.begin", "leadership.transaction")


@cache
def modules() -> dict[Path, list[ast.FunctionDef]]:
    """Returns the functions of the modules that open a transaction, or know a user."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "api").rglob("*.py"))}
    wanted = (*WRITING, "user: Principal")
    return {path: list(functions(ast.parse(text))) for path, text in texts.items() if any(map(text.count, wanted))}


def functions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yields the functions and methods of a module, each with the functions inside it."""
    bodies = [module.body, *(each.body for each in module.body if isinstance(each, ast.ClassDef))]
    return (each for body in bodies for each in body if isinstance(each, ast.FunctionDef))


def parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def named(function: ast.expr) -> str:
    """Returns the last two names of a called function: `jobs.find` for `stored.jobs.find`."""
    if isinstance(function, ast.Name):
        return function.id
    if not isinstance(function, ast.Attribute):
        return ""
    owner = function.value
    of = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return f"{of.removeprefix('stored_').removeprefix('_')}.{function.attr}"


def calls(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    return ((named(each.func), each) for each in ast.walk(node) if isinstance(each, ast.Call))


def gives(call: ast.Call, name: str, place: int | None = None) -> bool:
    return any(each.arg == name for each in call.keywords) or (place is not None and len(call.args) > place)


def writes(block: ast.AST) -> bool:
    """Returns whether a node is the block of a transaction that writes."""
    if not isinstance(block, ast.With):
        return False
    return any(name in WRITING for item in block.items for name, _ in calls(item.context_expr))


def scoped() -> dict[str, int | None]:
    """Returns the queries that take a scope, with its place if it has one."""
    found: dict[str, int | None] = {}
    for path in (ROOT / "db" / "repositories").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for each in functions(ast.parse(text)) if "scope" in text else ():
            if "scope" in parameters(each):
                names = [argument.arg for argument in each.args.args]
                found[f"{path.stem}.{each.name}"] = names.index("scope") if "scope" in names else None
    return found


def test_a_function_that_knows_the_user_gives_the_users_scope_to_a_query() -> None:
    queries = scoped()
    without = {
        (path.name, function.name, query)
        for path, found in modules().items()
        for function in found
        if "user" in parameters(function)
        for query, call in calls(function)
        if query in queries and not gives(call, "scope", queries[query])
    }
    assert {"jobs.find", "artifacts.is_visible"} <= queries.keys()
    assert without == UNSCOPED


def test_a_job_is_locked_in_a_transaction_that_writes() -> None:
    looks = {
        (path.name, function.name, name, gives(call, "lock"))
        for path, found in modules().items()
        for function in found
        for block in ast.walk(function)
        if writes(block)
        for name, call in calls(block)
        if name in {"require_job", "jobs.find"}
    }
    assert len([each for each in looks if each[-1]]) >= 5
    assert {each[:-1] for each in looks if not each[-1]} == UNLOCKED
