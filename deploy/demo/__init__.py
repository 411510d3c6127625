"""The demo: the main job on real input, killed, recovered, rescaled, and compared with a plain computation."""
