"""Runs Spark's `StatefulProcessor` on Keyscale's state: classes written for `transformWithState` run unchanged."""
