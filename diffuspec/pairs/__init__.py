"""Pairs of a target and a drafter that are trained here."""
