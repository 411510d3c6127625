"""Keyed state: values, maps, lists, aggregates and timers under the current key."""
