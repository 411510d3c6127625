"""The demo's play of upgrades: wrong, repairing and failing programs, a clone."""
