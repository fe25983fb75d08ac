"""JSON Schemas of users, rewritten so that llguidance enforces what they say, or refused."""
