"""An engine: prompts in, answers out, over any roles."""
