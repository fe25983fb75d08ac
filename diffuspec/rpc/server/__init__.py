"""The serving side: roles as gRPC services, with token, TLS, limits and health."""
