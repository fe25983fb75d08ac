"""The draft service: drafts for engines that are not ours, made ahead of their steps."""
