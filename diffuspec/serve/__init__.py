"""The service over HTTP: OpenAI's API over any engine, in this process or on a cluster."""
