"""Objects of Spark's JVM as py4j shows them, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class JavaObject:
    """An object, equal to itself alone."""

    def __init__(self, **methods: Any) -> None:
        self.__dict__.update(methods)


def answering(**answers: Any) -> Any:
    """Returns an object whose methods return fixed answers."""
    return JavaObject(**{name: lambda answer=answer: answer for name, answer in answers.items()})


def sequence(*items: Any) -> Any:
    """Returns a sequence of Scala's."""
    return SimpleNamespace(size=lambda: len(items), apply=lambda at: items[at])
