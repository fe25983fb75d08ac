"""Starts the roles' actors, watches them, and replaces those that are lost."""
