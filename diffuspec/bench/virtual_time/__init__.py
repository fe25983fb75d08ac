"""The real coordinator in virtual time, on simulated machines."""
