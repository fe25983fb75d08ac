"""Settings of the HTTP service: limits, times, keys."""

from __future__ import annotations

from pydantic import Field

from diffuspec.core.validation import FilePath, Section


class ServeSettings(Section):
    """The HTTP service: who may call it, and limits, none of which can be switched off."""

    api_keys: FilePath | None = Field(
        None,
        description="File of API keys, as `diffuspec keys add` makes; null: none are asked for.",
    )
    allowed_hosts: tuple[str, ...] | None = Field(
        None,
        strict=False,
        description="Values of the header Host that are answered, without ports; null: all with "
        "API keys, only loopback's own names without.",
    )
    audit_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of answers that are decoded again without drafts, one at a time while "
        "there is a place free, and compared (`diffuspec_audits_total`).",
    )
    tool_call_parser: str | None = Field(
        None,
        description="How calls are read, and written where they are demanded, in vLLM's words: "
        "hermes, qwen3_coder, llama3_json, pythonic, mistral, openai (gpt-oss) or none; null: by "
        "the model's chat template.",
    )
    reasoning_parser: str | None = Field(
        None,
        description="How reasoning is told from the answer, in vLLM's words: qwen3, deepseek_r1, "
        "openai_gptoss or none; null: by the model's chat template.",
    )
    generation_config: str = Field(
        "auto",
        description="Where sampling parameters that requests leave out come from: auto, the "
        "model's generation_config.json; vllm, OpenAI's defaults; or a directory that has such a "
        "file.",
    )
    playground: bool = Field(True, description="Serve the page at / that shows speculation.")
    max_body_bytes: int = Field(
        1024 * 1024, ge=1024, description="Largest body of a request; a larger one gets 413."
    )
    max_requests: int = Field(
        256, ge=1, description="Requests in progress; one more gets 429. Engines have queues, too."
    )
    max_connections: int = Field(
        1024, ge=1, description="Open connections of `diffuspec serve`; one more is closed."
    )
    request_seconds: float = Field(
        600.0, gt=0, description="Longest time that a request may take; no client can change it."
    )
    header_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds in which headers must arrive; Serve's own proxies have no such limit.",
    )
    body_seconds: float = Field(30.0, gt=0, description="Seconds in which a body must arrive.")
    write_seconds: float = Field(
        30.0, gt=0, description="Seconds without reading after which a client is dropped."
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="Seconds that running requests are given when the service stops."
    )
    max_tokenizing: int = Field(
        2, ge=1, le=64, description="Threads that render chats and tokenise prompts."
    )


class ServeFile(Section):
    """The service's settings in a file of `diffuspec serve`, apart from those of the engine."""

    serve: ServeSettings = Field(ServeSettings(), description="Keys and bounds of the service.")
