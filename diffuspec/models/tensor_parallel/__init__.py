"""One target split over several processes (ranks) that take the same steps."""
