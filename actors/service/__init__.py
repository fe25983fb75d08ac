"""The service on Ray Serve: pipeline replicas, the directory of them, and what HTTP runs over."""
