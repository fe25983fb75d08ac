"""Settings of the HTTP service: limits, times, keys."""

from __future__ import annotations

from pydantic import Field

from diffuspec.core.validation import FilePath, Section


class ServeSettings(Section):
    """The HTTP service: who may call it, and limits, none of which can be switched off."""

    api_keys: FilePath | None = Field(
        None,
        description="File of API keys, as `diffuspec keys add` creates it; null: no keys are "
        "required.",
    )
    allowed_hosts: tuple[str, ...] | None = Field(
        None,
        strict=False,
        description="Accepted values of the Host header, without ports; null: with API keys all "
        "values, without API keys only the names of loopback.",
    )
    audit_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of answers that are decoded again without drafts and compared "
        "(`diffuspec_audits_total`), one at a time, while there is a free slot.",
    )
    tool_call_parser: str | None = Field(
        None,
        description="Format in which tool calls are parsed, and generated when they are required, "
        "by vLLM's names: hermes, qwen3_coder, llama3_json, pythonic, mistral, openai "
        "(gpt-oss) or none; null: by the model's chat template.",
    )
    reasoning_parser: str | None = Field(
        None,
        description="Format in which reasoning is parsed, by vLLM's names: qwen3, deepseek_r1, "
        "openai_gptoss or none; null: by the model's chat template.",
    )
    allow_template_tokens: bool = Field(
        False,
        description="Whether a text of a user or a tool that names a token of the chat template, "
        "such as `<|im_end|>`, becomes that token, as with other servers; false: it stays text. "
        "Prompts of completions are not affected.",
    )
    strict: bool = Field(
        False,
        description="Whether keys of bodies that are unknown, or that the model's chat template "
        "cannot obey, are refused; false: they are ignored, and named in the header "
        "`x-diffuspec-ignored`.",
    )
    generation_config: str = Field(
        "auto",
        description="Source of sampling parameters that requests omit: auto (the model's "
        "generation_config.json), vllm (OpenAI's defaults), or a directory with such a "
        "file.",
    )
    playground: bool = Field(True, description="Serve the page at / that shows speculation.")
    max_body_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="Maximum size of a request body in bytes; larger bodies get 413.",
    )
    max_requests: int = Field(
        256,
        ge=1,
        description="Maximum number of requests in progress; further requests get 429. "
        "Engines have queues, too.",
    )
    max_connections: int = Field(
        1024,
        ge=1,
        description="Maximum number of open connections of `diffuspec serve`; further connections "
        "are closed.",
    )
    max_connections_per_address: int = Field(
        256,
        ge=1,
        description="Maximum number of open connections of one client address, except loopback "
        "(an IPv6 client is its network of 64 bits); further connections are closed. Behind a "
        "gateway of another machine set it to `max_connections`.",
    )
    request_seconds: float = Field(
        600.0,
        gt=0,
        description="Maximum time that a request may take, in seconds; no client can change it.",
    )
    header_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds within which headers must arrive; Ray Serve's own proxies have "
        "no such limit.",
    )
    body_seconds: float = Field(
        30.0,
        gt=0,
        description="Seconds within which a body must arrive, even one that is not read; then the "
        "connection ends.",
    )
    write_seconds: float = Field(
        30.0, gt=0, description="Seconds after which a client that does not read is disconnected."
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="Seconds that running requests have to finish when the service stops.",
    )
    max_tokenizing: int = Field(
        2,
        ge=1,
        le=64,
        description="Threads that render chats and tokenise prompts of bodies up to 16 KiB, and "
        "half as many, at least one, for longer ones, which others notice less; API keys take "
        "turns.",
    )


class ServeFile(Section):
    """The service's settings in a file of `diffuspec serve`, apart from those of the engine."""

    serve: ServeSettings = Field(ServeSettings(), description="API keys and limits of the service.")
