"""The modules of the core, the tests that concern each, and the mistakes that no test needs to notice."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Edit:
    """The difference between a module and its mutant.

    Attributes:
        module: The module's name.
        function: The function, after its class if it is a method.
        before: The changed lines, without their indentation.
        after: The lines in their place.
    """

    module: str
    function: str
    before: str
    after: str

    def as_accepted(self) -> str:
        """Returns the entry of accepted.toml, without its reason. A JSON string is a TOML string, too."""
        fields = ((name, getattr(self, name)) for name in ("module", "function", "before", "after"))
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields]
        return "\n".join(["[[accepted]]", *lines, 'reason = ""'])


@dataclass(frozen=True, slots=True)
class Core:
    """The modules to mutate, their tests, and the share to be noticed.

    Attributes:
        noticed_min: The share of mutants to be noticed, from 0 to 1.
        tests: The paths of the tests that concern a module, by its name.
        accepted: The edits that no test needs to notice, with the reason of each.
    """

    noticed_min: float
    tests: dict[str, list[str]]
    accepted: dict[Edit, str]

    def modules_like(self, parts: tuple[str, ...]) -> list[str]:
        """Returns the modules that have one of `parts` in their name, or all without any."""
        return [module for module in self.tests if not parts or any(part in module for part in parts)]


def read_core(core: Path = FOLDER / "core.toml", accepted: Path = FOLDER / "accepted.toml") -> Core:
    settings = tomllib.loads(core.read_text())
    edits: dict[Edit, str] = {}
    for entry in tomllib.loads(accepted.read_text()).get("accepted", []):
        reason = entry.pop("reason")
        if not reason:
            message = f"{accepted.name} accepts {entry['before']!r} without a reason"
            raise ValueError(message)
        edits[Edit(**entry)] = reason
    return Core(settings["noticed_min"], settings["tests"], edits)
