"""The modules of a page, named in it.

So a browser fetches them in parallel, not one import after another.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath

STATIC = Path(__file__).parent / "static"
_IMPORTED = re.compile(r'^(?:import|\}).* from "(\.{1,2}/[\w./]+)";$', re.MULTILINE)


@cache
def imported_modules(page: str) -> tuple[str, ...]:
    """Returns the paths of all modules that a page imports, by name.

    The paths are below `static`; indirect imports are included.

    A page without a module, such as the page for unknown addresses, imports none.
    """
    own = f"pages/{page}.js"
    found: set[str] = set()
    left = [own] if (STATIC / own).is_file() else []
    while left:
        module = left.pop()
        text = (STATIC / module).read_text()
        names = {normpath(str(PurePosixPath(module).parent / name)) for name in _IMPORTED.findall(text)}
        left += names - found
        found |= names
    return tuple(sorted(found))
