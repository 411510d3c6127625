"""`./keyscale mutants`: makes mistakes in the core, one at a time, and says which ones no test notices."""

from __future__ import annotations

from pathlib import Path

import click

from tests.mutants.core import FOLDER, read_core
from tests.mutants.mutated_copy import MutationError, mutated_copy
from tests.mutants.report import HEADER, Tally, tally

a_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(name="mutants")
@click.argument("parts", metavar="[MODULE]...", nargs=-1)
@click.option("--sample", type=click.IntRange(1), help="Try this many mutants of each module, chosen at random.")
@click.option("--seed", default=0, show_default=True, help="Of the choice: the same seed chooses the same mutants.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Mutants to try at a time.")
@click.option("--core", "core_file", type=a_file, default=FOLDER / "core.toml", help="The modules and their tests.")
def main(parts: tuple[str, ...], sample: int | None, seed: int, processes: int, core_file: Path) -> None:
    """Makes mistakes in the modules of the core that have MODULE in their name, or in all, and runs their tests.

    Prints each mistake that no test noticed. The exit code is 1 if too few were noticed.
    """
    core = read_core(core_file)
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


if __name__ == "__main__":
    main(prog_name="./keyscale mutants")
