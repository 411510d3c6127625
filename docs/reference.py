"""Generates the reference of the Python API from its docstrings: `./keyscale docs`.

Only the public modules are documented, each with the names in its `__all__`, wherever they are defined.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pdoc.doc
import pdoc.render

PUBLIC_MODULES = ("keyscale", "keyscale.state", "keyscale.testing")


def load(name: str) -> pdoc.doc.Module:
    """Imports a public module with all of its public names.

    `keyscale` itself imports them only at first use.
    """
    module = import_module(name)
    for public in module.__all__:
        setattr(module, public, getattr(module, public))
    return pdoc.doc.Module(module)


def write_reference(directory: Path) -> Path:
    """Writes the pages.

    Args:
        directory: Where to write them; made if it is missing, existing pages are replaced.

    Returns:
        The first page.
    """
    pdoc.render.configure(docformat="google", show_source=False, footer_text="Keyscale")
    modules = {name: load(name) for name in PUBLIC_MODULES}
    pages = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(modules[name], modules) for name in modules}
    pages["index.html"] = pdoc.render.html_index(modules)
    pages["search.js"] = pdoc.render.search_index(modules)
    for path, text in pages.items():
        page = directory / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    return directory / "keyscale.html"


if __name__ == "__main__":
    print(write_reference(Path(sys.argv[1])))
