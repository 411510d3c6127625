"""A driver's talk with the control plane: its status and reports go up, commands come down."""
