"""An endless, seeded series of conversations, as text and as token ids."""
