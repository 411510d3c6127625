"""The parts of one control plane, which all rooms of routes share."""
