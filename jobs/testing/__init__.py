"""What users test their functions with. Ships with the SDK; needs neither Spark nor a store."""

from __future__ import annotations

from jobs.testing.harness import HarnessSnapshot, OperatorHarness, SecondStream

__all__ = ["HarnessSnapshot", "OperatorHarness", "SecondStream"]
