"""Speculation: what drafts cost, what they bring, and so how much to draft and to verify.

Pure: no clock, no I/O, no asyncio. The scheduler and the draft server decide with it.
"""
