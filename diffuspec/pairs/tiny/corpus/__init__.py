"""Seeded conversations without end, as text and as token ids."""
