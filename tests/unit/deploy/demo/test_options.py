"""The options of the demos."""

from click.testing import CliRunner

from keyscale.api.cli.root import keyscale
from keyscale.deploy.demo import __main__ as _commands  # noqa: F401 - it adds the commands


def test_the_upgrade_demo_takes_no_fewer_files_than_its_phases_deliver() -> None:
    refused = CliRunner().invoke(keyscale, ["demo", "upgrade", "--files", "39"])
    assert refused.exit_code == 2
    assert "39 is not in the range x>=40" in refused.output
