"""The loop: requests between a stage that drafts and a stage that verifies."""
