"""Long tests of a service, which run on a checkout and are not in the wheel."""
