"""The draft service: drafts for external engines, made ahead of their steps."""
