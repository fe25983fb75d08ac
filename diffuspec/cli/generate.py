"""`diffuspec generate`: answer one prompt."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuspec.cli import display, options
from diffuspec.cli.prompts import read_prompt
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams
from diffuspec.pairs.tiny import TARGET
from diffuspec.telemetry.trace import tracing

if TYPE_CHECKING:
    from diffuspec.core.types import Prompt

logger = logging.getLogger(__name__)

EXAMPLES = """[bold]Examples[/bold]

  diffuspec generate "What is the capital of France?"
  diffuspec generate --file question.txt --temperature 0.8 --seed 7
  echo "What sound does an owl make?" | diffuspec generate --json
  diffuspec generate "Hello" --target DIR --drafter DIR --ngram FILE
  diffuspec generate --raw "def add(a, b):" --target DIR --drafter DIR
"""

PromptText = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help="Without it, or for -, stdin is read.")
]
PromptFile = Annotated[
    Path | None, typer.Option(help="Read the prompt from a file.", metavar="FILE")
]
Chat = Annotated[
    bool,
    typer.Option("--chat/--raw", help="Send the prompt as a chat message, or as text to continue."),
]
System = Annotated[
    str | None, typer.Option(help="System message that opens the chat.", metavar="TEXT")
]


def run(
    prompt: PromptText = None,
    file: PromptFile = None,
    chat: Chat = True,
    system: System = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    ignore_eos: options.IgnoreEos = False,
    logprobs: options.Logprobs = None,
    target: options.Target = None,
    drafter: options.Drafter = None,
    ngram: options.Ngram = None,
    config: options.Config = None,
    threads: options.Threads = None,
    draft_length: options.DraftLength = None,
    tree: options.Tree = None,
    max_nodes: options.MaxNodes = None,
    drafter_weight: options.DrafterWeight = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    trace: options.Trace = None,
) -> None:
    """Answer one prompt with the target's own tokens, drafted by a diffusion LM."""
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    ).with_seed()
    if logprobs is not None and not json:
        raise InvalidRequestError("--logprobs needs --json")
    speculation = options.drafting(draft_length, tree, max_nodes, drafter_weight)
    settings = options.engine_config(config, target, drafter, ngram, speculation)
    if not chat and settings.target.path == TARGET:
        logger.warning("the embedded target was trained on chats only; it cannot continue text")
    request = _prompt(read_prompt(prompt, file), chat, system)
    with tracing(trace) as tracer, options.open_engine(settings, threads, tracer) as engine:
        if json:
            completion = asyncio.run(engine.complete(request, sampling))
            typer.echo(display.as_json(completion))
        else:
            stats = asyncio.run(display.stream_answer(engine, request, sampling))
            if not quiet:
                display.show_statistics(stats, None if sampling.is_greedy else sampling.seed)


def _prompt(text: str, chat: bool, system: str | None) -> Prompt:
    if not chat:
        if system is not None:
            raise InvalidRequestError("--system needs a chat, --raw sends none")
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]
