"""Drafts for engines: the client of diffuspec's draft server, and plug-ins built on it.

A plug-in never raises into its engine, never makes it wait beyond a deadline, and never passes it a
token that it cannot take. Without a server, engines decode as they do without a plug-in.
"""

from diffuspec_client.client import Draft, DraftClient, Row
from diffuspec_client.in_process import InProcess
from diffuspec_client.settings import Settings

__all__ = ["Draft", "DraftClient", "InProcess", "Row", "Settings"]
