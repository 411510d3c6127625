"""Runs Spark's `StatefulProcessor` on Keyscale's state.

Classes written for `transformWithState` run unchanged.
"""
