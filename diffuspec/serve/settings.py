"""Settings of the HTTP service: bounds, times, keys."""

from __future__ import annotations

from pydantic import Field

from diffuspec.core.validation import Section


class ServeSettings(Section):
    """The bounds of the HTTP service. Each is there to be reached: none can be switched off."""

    max_body_bytes: int = Field(
        1024 * 1024, ge=1024, description="Largest body of a request; one larger gets 413."
    )
    request_seconds: float = Field(
        600.0, gt=0, description="Longest time that a request may take; no client can change it."
    )
    body_seconds: float = Field(
        30.0, gt=0, description="Seconds in which the body of a request must have arrived."
    )
    write_seconds: float = Field(
        30.0, gt=0, description="Seconds without reading after which a client is dropped."
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="Seconds that running requests are given when the service stops."
    )
    max_tokenizing: int = Field(
        2, ge=1, le=64, description="Threads that render chats and tokenise prompts."
    )
