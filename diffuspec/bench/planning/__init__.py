"""Simulated machines: the real coordinator in virtual time."""
