"""The command line with the command `demo`: `python -m keyscale.deploy.demo demo`."""

from __future__ import annotations

import sys
from typing import Any

import click

from keyscale.api.cli.output import console_for
from keyscale.api.cli.process import free_port
from keyscale.api.cli.root import keyscale, main
from keyscale.api.cli.session import Session, pass_session


@keyscale.command()
@click.option(
    "--reports", type=click.IntRange(min=1000), help="Use only this many reports, the earliest ones (default: all)."
)
@click.option(
    "--files", default=60, show_default=True, type=click.IntRange(min=10), help="Number of files to deliver them in."
)
@click.option("--seconds", default=65.0, show_default=True, help="Duration of the delivery.")
@click.option("--seed", default=7, show_default=True, help="Selects the reports that are delivered twice.")
@click.option("--keep/--no-keep", default=None, help="Stay up after the verdict (default: on a terminal).")
@pass_session
def demo(session: Session, /, keep: bool | None, **scenario: Any) -> int:
    """Run the main job on real input, kill it, rescale it, and compare every number.

    The demo has a control plane of its own (under HOME/demo), which stops with it.
    """
    # The demo loads pandas and the flights; no other command needs them.
    from keyscale.deploy.demo.run import Demo  # noqa: PLC0415
    from keyscale.deploy.demo.scenario import Scenario  # noqa: PLC0415

    verdict = Demo(
        home=session.home / "demo",
        port=free_port(),
        scenario=Scenario(**scenario),
        console=console_for(sys.stdout),
        stay=sys.stdout.isatty() if keep is None else keep,
        settings={},
    ).run()
    return 0 if verdict.exact else 1


if __name__ == "__main__":
    sys.exit(main())
