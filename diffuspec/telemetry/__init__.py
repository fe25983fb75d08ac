"""Measurements: statistics and Prometheus series, and traces for Perfetto."""
