"""The service on Ray Serve: pipeline replicas, their directory, and the HTTP ingress."""
