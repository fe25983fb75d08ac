"""OpenAI's API as pure functions: bodies to requests, outputs to objects. No HTTP here."""
