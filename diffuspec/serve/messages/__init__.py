"""Anthropic's Messages API over chats: bodies, content blocks, answers, errors."""
