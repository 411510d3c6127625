"""A facade's names, each imported at first use.

The stub beside the facade lists them and their modules.
"""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path


def modules_of_names(package: str, file: str) -> dict[str, str]:
    """Returns the module of each name that a facade's stub lists.

    Args:
        package: The facade's `__name__`.
        file: The facade's `__file__`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: resolve_name("." * node.level + str(node.module), package)
        for node in imports
        for alias in node.names
    }
