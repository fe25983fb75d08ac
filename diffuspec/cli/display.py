"""Answers as output: coloured on a terminal, plain in a pipe, or one JSON object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from diffuspec.telemetry.request_stats import RequestStats, summarize

if TYPE_CHECKING:
    from diffuspec.core.params import SamplingParams
    from diffuspec.core.types import FinishReason, Prompt, RequestOutput, StepStats, TokenLogprobs
    from diffuspec.engine.completion import Completion
    from diffuspec.engine.engine import Engine

_ACCEPTED_STYLE = "green"
_OWN_STYLE = "bold yellow"
_FEW_STEPS = 3  # a shorter answer says little about drafts
_LEGEND = Text.assemble(
    ("green", _ACCEPTED_STYLE),
    ": drafted and accepted; ",
    ("yellow", _OWN_STYLE),
    ": the target's own",
)


def stdout_console() -> Console:
    """Return a console on stdout; in a pipe it is at least as wide as tables need."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a bar on stderr, which is shown only on a terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


class Shown(NamedTuple):
    """The statistics of a printed answer, and its finish reason."""

    stats: RequestStats
    finish_reason: FinishReason | None


async def stream_answer(
    engine: Engine, prompt: Prompt, sampling: SamplingParams, *, at_once: bool = False
) -> Shown:
    """Print an answer on stdout as it arrives, or `at_once`."""
    console = stdout_console()
    token_ids = engine.encode(prompt).tolist()
    steps: list[StepStats] = []
    held: list[RequestOutput] = []
    last, finish_reason = "", None
    async for increment in engine.stream(token_ids, sampling):
        if at_once:
            held.append(increment)
        else:
            _show(increment, console)
        steps.append(increment.step)
        last = increment.text or last
        finish_reason = increment.finish_reason
    for increment in held:
        _show(increment, console)
    if not last.endswith("\n"):
        console.file.write("\n")
    console.file.flush()
    return Shown(summarize(steps, len(token_ids)), finish_reason)


def notes_on(shown: Shown, max_tokens: int, has_drafts: bool) -> list[str]:
    """Return notes: why there were few drafts, and whether the answer was cut off.

    has_drafts: there is a drafter, and the scheduler decides when it drafts.
    """
    stats, notes = shown.stats, []
    if stats.num_fallbacks:
        notes.append(f"drafting failed in {stats.num_fallbacks} of {stats.num_steps} steps")
    num_undrafted = stats.num_steps - stats.num_drafts - stats.num_fallbacks
    if has_drafts and stats.num_steps > _FEW_STEPS and num_undrafted * 2 > stats.num_steps:
        notes.append("drafts paused: plain decoding is faster at the moment")
    if shown.finish_reason == "length":
        is_own = stats.num_output_tokens >= max_tokens
        limit = f"--max-tokens {max_tokens}" if is_own else "the end of the context"
        notes.append(f"cut off at {limit}")
    return notes


def _show(increment: RequestOutput, console: Console) -> None:
    if console.is_terminal:
        console.print(_styled(increment), end="", soft_wrap=True)
    else:
        console.file.write(increment.text)
    console.file.flush()


def _styled(increment: RequestOutput) -> Text:
    styled = Text()
    for position, piece in enumerate(increment.pieces):
        is_accepted = position < increment.num_accepted_tokens
        piece = piece.replace("\x1b", "␛")  # a model must not send terminal commands
        styled.append(piece, _ACCEPTED_STYLE if is_accepted else _OWN_STYLE)
    return styled


def show_statistics(
    stats: RequestStats, seed: int | None = None, notes: Sequence[str] = ()
) -> None:
    """Print a line of statistics to stderr; on a terminal also the meaning of the colours.

    seed: the seed with which a sampled answer can be repeated. notes: end of the line.
    """
    total = stats.total_seconds or 1.0
    steps = "step" if stats.num_steps == 1 else "steps"
    parts = [
        f"{stats.num_prompt_tokens} + {stats.num_output_tokens} tokens",
        f"{stats.total_seconds:.2f} s, {stats.tokens_per_second:.0f} tokens/s",
        f"{stats.num_steps} {steps} of {stats.mean_acceptance_length:.2f} tokens",
        f"draft {stats.draft_seconds / total:.0%}",
        f"search {stats.search_seconds / total:.0%}",
        f"verify {stats.verify_seconds / total:.0%}",
        *([] if seed is None else [f"seed {seed}"]),
        *notes,
    ]
    console = Console(stderr=True, highlight=False)
    console.print(" · ".join(parts), style="dim", soft_wrap=True)
    if console.is_terminal and stats.num_accepted_tokens:
        console.print(_LEGEND, style="dim", soft_wrap=True)


def as_json(completion: Completion) -> str:
    """Return a completion as a JSON object on one line."""
    stats = completion.stats
    statistics = dataclasses.asdict(stats)
    statistics["mean_acceptance_length"] = stats.mean_acceptance_length
    statistics["tokens_per_second"] = stats.tokens_per_second
    fields: dict[str, object] = {
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
        "seed": completion.seed,
    }
    if completion.logprobs is not None:
        fields["logprobs"] = [
            _logprob_fields(token_id, logprobs)
            for token_id, logprobs in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    fields["statistics"] = statistics
    return json.dumps(fields, ensure_ascii=False)


def _logprob_fields(token_id: int, logprobs: TokenLogprobs) -> dict[str, object]:
    return {
        "token_id": token_id,
        "logprob": logprobs.logprob,
        "top": [{"token_id": other, "logprob": logprob} for other, logprob in logprobs.top],
    }
