"""The service over HTTP: OpenAI's and Anthropic's APIs over an engine, local or on a cluster."""
