"""The harness for users' functions: `from keyscale.testing import OperatorHarness`.

It runs one operator in memory, needs neither Spark nor a store, and ships with the SDK.
"""

from keyscale.jobs.testing.harness import HarnessSnapshot, Observations, OperatorHarness, SecondStream

__all__ = ["HarnessSnapshot", "Observations", "OperatorHarness", "SecondStream"]
