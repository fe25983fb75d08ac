"""Prometheus's configuration and rules, and the dashboard for Grafana."""
