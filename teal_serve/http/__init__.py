"""The service as seen from outside: routes, middleware, page."""
