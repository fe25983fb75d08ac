"""Adaptive draft length (ADL): what drafts cost, what they bring, and how long they should be.

The scheduler decides by it, and so does the draft server for engines of another make.
"""
