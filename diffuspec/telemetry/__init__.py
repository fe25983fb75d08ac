"""What is measured: statistics and Prometheus series, and traces for Perfetto."""
