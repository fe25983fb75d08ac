"""The HTTP side of the service: routes, streams of events, limits, keys and errors."""
