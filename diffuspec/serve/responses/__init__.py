"""OpenAI's Responses API over chats: bodies, input items, and answers as output items."""
