"""What starts things: reads the environment and YAML, once."""
