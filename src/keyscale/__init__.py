"""The SDK of jobs: `from keyscale import StreamEnvironment, KeyedProcessFunction`.

The stub `__init__.pyi` is the one list of its names and their modules: type checkers and editors read it, and so does
this module. A name is imported when it is first used, so that the control plane, which needs only the wire contract,
never loads Spark.
"""

from __future__ import annotations

from importlib import import_module

from keyscale.lazy_names import modules_of_names

_MODULES = modules_of_names(__name__, __file__)
__all__ = sorted(_MODULES)  # noqa: PLE0605 - a list of strings, which only the stub knows


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
