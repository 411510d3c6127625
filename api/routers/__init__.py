"""The routes, thin: they read the request, call a service and return its answer."""
