"""The command line with the command `demo`: `python -m keyscale.deploy.demo demo`."""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from keyscale.api.cli.output import console_for
from keyscale.api.cli.process import free_port
from keyscale.api.cli.root import keyscale, main
from keyscale.api.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .run import Play


Command = TypeVar("Command", bound="Callable[..., Any]")


def demo_options(command: Command, *, files_min: int = 10) -> Command:
    """Adds the options of every demo: its scenario, and whether it stays."""
    for option in reversed(
        (
            click.option(
                "--reports",
                type=click.IntRange(min=1000),
                help="Use only this many reports, the earliest ones (default: all).",
            ),
            click.option(
                "--files",
                default=60,
                show_default=True,
                type=click.IntRange(min=files_min),
                help="Number of files to deliver them in.",
            ),
            click.option("--seconds", default=65.0, show_default=True, help="Duration of the delivery."),
            click.option("--seed", default=7, show_default=True, help="Selects the reports that are delivered twice."),
            click.option("--keep/--no-keep", default=None, help="Stay up after the verdict (default: on a terminal)."),
        )
    ):
        command = option(command)
    return command


@keyscale.group(invoke_without_command=True)
@demo_options
@click.pass_context
@pass_session
def demo(session: Session, context: click.Context, /, keep: bool | None, **scenario: Any) -> int | None:
    """Run the main job, disturb it, and compare every number.

    The demo kills and rescales the job on real input. It has a control plane of its own (under HOME/demo), which stops
    with it. `demo upgrade` shows new versions of the job instead, `demo outage` a job that scales by itself.
    """
    if context.invoked_subcommand is not None:
        if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in context.params):
            raise click.UsageError(f"options go after `{context.invoked_subcommand}`")
        return None
    # Only the demo loads pandas and the flights.
    from .kill_and_rescale import KillAndRescale  # noqa: PLC0415
    from .scenario import RescaleScenario  # noqa: PLC0415

    return _run(session, KillAndRescale(RescaleScenario(**scenario)), keep=keep)


@demo.command()
@partial(demo_options, files_min=40)  # some are delivered in each phase of two changes
@pass_session
def upgrade(session: Session, /, keep: bool | None, **scenario: Any) -> int:
    """Upgrade and clone the running job, and compare every number.

    Version 1 counts wrongly. Version 2 is planned and applied while reports come in; it keeps the state and repairs it.
    Version 3 raises, and Keyscale rolls it back. A clone of the savepoint runs at another parallelism beside the job.
    """
    from .scenario import UpgradeScenario  # noqa: PLC0415 - as above
    from .upgrade.upgrade_play import Upgrade  # noqa: PLC0415

    return _run(session, Upgrade(UpgradeScenario(**scenario)), keep=keep)


@demo.command()
@click.option("--slow-sink", is_flag=True, help="No outage, but a slow sink: the job keeps its size, and says why.")
@click.option("--keep/--no-keep", default=None, help="Stay up after the verdict (default: on a terminal).")
@pass_session
def outage(session: Session, /, keep: bool | None, *, slow_sink: bool) -> int:
    """Take the object store away from a job that scales by itself.

    The job counts payments that never stop coming, and waits while its store is away. Then it is scaled out, processes
    the backlog, and is scaled in. The timeline is printed and drawn, and all counts are compared.
    """
    from .outage.outage_play import OutageScenario, outage_play  # noqa: PLC0415 - only this demo loads its libraries

    scenario = OutageScenario(service_ms=0.0, sink_ms=15.0) if slow_sink else OutageScenario()
    with outage_play(scenario, session.home / "outage-servers") as play:
        return _run(session, play, keep=keep, home="demo-outage", settings=play.s3.variables)


def _run(
    session: Session, play: Play, *, keep: bool | None, home: str = "demo", settings: Mapping[str, str] | None = None
) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # closing the terminal also ends all that the demo has started
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    from .run import Demo  # noqa: PLC0415

    verdict = Demo(
        home=session.home / home,
        port=free_port(),
        play=play,
        console=console_for(sys.stdout),
        stay=sys.stdout.isatty() if keep is None else keep,
        settings=settings or {},
    ).run()
    return 0 if verdict.exact else 1


if __name__ == "__main__":
    sys.exit(main())
