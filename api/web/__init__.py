"""The control plane's process and web application: start, middleware, error answers."""
