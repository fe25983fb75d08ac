"""A cluster of machines that are network namespaces of this one, and what their loss costs."""
