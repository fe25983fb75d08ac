"""Where things run: Ray actors, their placement and supervision."""
