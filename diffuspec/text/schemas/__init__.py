"""JSON Schemas of users, rewritten so that llguidance enforces them exactly, or refused."""
