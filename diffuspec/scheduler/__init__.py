"""The scheduler: one loop that decodes all requests, and the function that makes its decisions."""
