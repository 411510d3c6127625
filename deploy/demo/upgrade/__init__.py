"""The demo's play of upgrades: a wrong program, one that repairs its state, one that fails, and a clone."""
