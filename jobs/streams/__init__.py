"""The environment and the streams with which a script declares its job."""
