"""gRPC between the roles: the only part of the library that knows the protocol."""
