"""`./keyscale mutants`: makes mistakes, one at a time, and says which ones no test notices."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tests.mutants.core import FOLDER, Core, Edit, read_core
from tests.mutants.mutated_copy import MutationError, mutated_copy
from tests.mutants.patches import mistakes_in
from tests.mutants.reach import measured
from tests.mutants.report import HEADER, Tally, tally
from tests.mutants.trials import outcomes
from tests.mutants.uses import NOTICED_MIN, lines_of, mistakes_of, sampled
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants.uses import Mistake

USES = 60
"""The mistakes of `--uses` without `--sample`."""
a_file = click.Path(exists=True, dir_okay=False, path_type=Path)
a_folder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(name="mutants")
@click.argument("parts", metavar="[MODULE]...", nargs=-1)
@click.option("--sample", type=click.IntRange(1), help="Try this many mutants of each module, chosen at random.")
@click.option("--seed", default=0, show_default=True, help="Of the choice: the same seed chooses the same mutants.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Mutants to try at a time.")
@click.option("--uses", is_flag=True, help="Make mistakes at places of use, in all packages, for the fast tier.")
@click.option("--patches", type=a_folder, help="Make the mistakes of these patches instead, for the fast tier.")
@click.option("--reach", type=click.Path(path_type=Path), help="Where a run of the fast tier is noted.")
@click.option("--core", "core_file", type=a_file, default=FOLDER / "core.toml", help="The modules and their tests.")
def main(
    parts: tuple[str, ...],
    *,
    sample: int | None,
    seed: int,
    processes: int,
    uses: bool,
    patches: Path | None,
    reach: Path | None,
    core_file: Path,
) -> None:
    """Makes mistakes in the modules of the core that have MODULE in their name, or in all, and runs their tests.

    Prints each mistake that no test noticed. The exit code is 1 if too few were noticed.
    """
    core = read_core(core_file)
    if uses or patches:
        try:
            known = mistakes_in(patches, ROOT) if patches else mistakes_of(ROOT)
            known = [each for each in known if not parts or any(part in each.module for part in parts)]
            chosen = known if patches else sampled(known, sample or USES, seed, lines_of(ROOT))
            try_uses(outcomes(chosen, measured(processes, reach), processes), core)
        except MutationError as error:
            raise click.ClickException(str(error)) from error
        return
    modules = core.modules_like(parts)
    if not modules:
        raise click.UsageError(
            f"no module of the core has {' or '.join(parts)} in its name; it has {', '.join(core.tests)}"
        )
    click.echo(HEADER)
    total = Tally()
    untried = []
    with mutated_copy() as copy:
        for module in modules:
            try:
                tried = copy.run(module, core.tests[module], sample=sample, seed=seed, processes=processes)
            except MutationError as error:
                click.echo(f"{module}: {error}", err=True)
                untried.append(module)
                continue
            counted = tally(tried.noticed, tried.timed_out, tried.survivors, core.accepted)
            click.echo(counted.row(module))
            for edit in tried.survivors:
                if edit not in core.accepted:
                    click.echo(f"\n{edit.as_accepted()}\n", err=True)
            total += counted
    click.echo(total.row("all"))
    if untried:
        raise click.ClickException(f"these could not be tried: {', '.join(untried)}")
    if total.share < core.noticed_min:
        raise click.ClickException(f"fewer than {core.noticed_min:.0%} of the mutants were noticed")


def try_uses(tried: Iterable[tuple[Mistake, str]], core: Core) -> None:
    """Prints mistakes that the fast tier did not notice, and the share that it noticed."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: dict[str, list[Edit]] = defaultdict(list)
    for mistake, outcome in tried:
        package = mistake.path.parts[0]
        counts[package][outcome] += 1
        if outcome in ("survived", "unreached"):
            edit = mistake.edit((ROOT / mistake.path).read_bytes())
            survivors[package].append(edit)
            if edit not in core.accepted:
                place = f"{mistake.path}:{mistake.lines[0]}"
                click.echo(f"\n# {mistake.kind}, {outcome}, {place}\n{edit.as_accepted()}\n", err=True)
    click.echo(HEADER)
    total = Tally()
    for package, count in sorted(counts.items()):
        counted = tally(count["noticed"], count["timed out"], survivors[package], core.accepted)
        click.echo(counted.row(package))
        total += counted
    click.echo(total.row("all"))
    if total.share < NOTICED_MIN:
        raise click.ClickException(f"the fast tier noticed fewer than {NOTICED_MIN:.0%} of the mistakes")


if __name__ == "__main__":
    main(prog_name="./keyscale mutants")
