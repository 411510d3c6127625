from __future__ import annotations

import sys
from typing import Any

import click

from api.cli.output import console_for
from api.cli.ports import free_port
from api.cli.session import Session, pass_session


@click.command()
@click.option("--reports", type=click.IntRange(min=1000), help="Only the earliest so many reports (default: all).")
@click.option(
    "--files", default=60, show_default=True, type=click.IntRange(min=10), help="Files they are delivered in."
)
@click.option("--seconds", default=65.0, show_default=True, help="How long the delivery takes.")
@click.option("--seed", default=7, show_default=True, help="Which reports are delivered twice.")
@click.option("--keep/--no-keep", default=None, help="Stay up after the verdict (default: on a terminal).")
@pass_session
def demo(session: Session, /, keep: bool | None, **scenario: Any) -> int:
    """Run the main job on real input, kill it, rescale it, and compare every number.

    The demo has a control plane of its own (under HOME/demo), which stops with it.
    """
    # The demo brings pandas and the flights along; no other command needs them.
    from deploy.demo.run import Demo  # noqa: PLC0415
    from deploy.demo.scenario import Scenario  # noqa: PLC0415

    verdict = Demo(
        home=session.home / "demo",
        port=free_port(),
        scenario=Scenario(**scenario),
        console=console_for(sys.stdout),
        stay=sys.stdout.isatty() if keep is None else keep,
        settings={},
    ).run()
    return 0 if verdict.exact else 1
