"""All error classes of all packages: found by importing every module, so that none can be forgotten."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("state", "jobs", "db", "api", "deploy")
PACKAGES = ("keyscale.client", "keyscale.state_import", "keyscale.state_io", *(f"keyscale.{name}" for name in FOLDERS))
# Programs and users' scripts: importing them would run them or needs a driver around them.
PROGRAMS = frozenset({"keyscale.jobs.examples", "keyscale.db.migrations", "keyscale.deploy.demo.feeder"})


def module_names() -> list[str]:
    """Returns the names of all modules of our packages that can be imported without running a program."""
    names = ["keyscale.errors"]
    for package in PACKAGES:
        module = importlib.import_module(package)
        names.append(package)
        names += [found.name for found in pkgutil.walk_packages(module.__path__, f"{package}.")]
    return [
        name
        for name in names
        if not name.endswith(".__main__") and not any(name == p or name.startswith(f"{p}.") for p in PROGRAMS)
    ]


def error_classes() -> list[type[BaseException]]:
    """Returns every exception class with a code that a module of ours defines."""
    classes: dict[str, type[BaseException]] = {}
    for name in module_names():
        for thing in vars(importlib.import_module(name)).values():
            is_error = isinstance(thing, type) and issubclass(thing, BaseException) and hasattr(thing, "code")
            if is_error and thing.__module__ == name:
                classes[f"{name}.{thing.__qualname__}"] = thing
    return [classes[name] for name in sorted(classes)]


@cache
def source_files() -> list[Path]:
    """Returns the Python sources of our packages, of the tests and of the benchmarks."""
    root = ROOT
    return sorted(path for package in ("src", *FOLDERS, "bench", "tests") for path in (root / package).rglob("*.py"))


def syntax_tree(path: Path) -> ast.Module:
    """Returns a source's syntax tree; to keep the trees of all sources would take 600 MB."""
    return ast.parse(path.read_text(encoding="utf-8"))
