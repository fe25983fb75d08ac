"""The target's own greedy answers, with probabilities, to given or self-written questions.

Given the chat template up to the user's message, a chat model writes a question itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ConfigError
from diffuspec.core.files import cut_torn_line
from diffuspec.core.params import MAX_CHOICES, SamplingParams
from diffuspec.core.types import FinishReason, Prompt
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.pairs.factory.answer_files import AnswerFiles
from diffuspec.pairs.factory.examples import NUM_TOP_IDS, PROBABILITY_UNITS
from diffuspec.pairs.factory.prompts import MAX_QUESTION_TOKENS, Passages, Rounds

MAX_ANSWER_TOKENS = 192
_QUESTION_PLACE = "0123456789"  # no template contains this text
_BATCH = 64  # answers between two writes


def write_answers(
    engine: Engine,
    path: Path,
    num_answers: int,
    prompt_files: Sequence[Path] = (),
    on_progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Append answers to a file until it has num_answers; existing answers are kept.

    Prompts come from the files, then from the target itself. on_progress is called with the number
    of answers so far. Raises ConfigError.
    """
    count = _drop_unfinished_line(path)
    prompts = _prompts(engine, prompt_files, count)
    with path.open("a", encoding="utf-8") as file:
        while count < num_answers:
            on_progress(count)
            batch = list(islice(prompts, min(_BATCH, num_answers - count)))
            found = engine.generate(batch, _sampling())
            for prompt, answer in zip(batch, found, strict=True):
                file.write(_line(engine.encode(prompt).tolist(), answer))
                count += 1
            file.flush()
    on_progress(count)


def write_rounds(
    engine: Engine,
    files: AnswerFiles,
    num_answers: int,
    prompt_files: Sequence[Path] = (),
    passages: Passages | None = None,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Add rounds of answers to files until they have num_answers or more.

    First the prompts of files are answered, then questions of `Rounds`. Raises ConfigError.
    """
    given = [prompt for path in prompt_files for prompt in read_prompts(path)]
    size, sampling = files.progress.round_size, _sampling()
    num_given = -(-len(given) // size)  # rounds
    rounds: Rounds | None = None
    while files.progress.num_answers < num_answers:
        on_progress(files.progress.num_answers)
        number = files.progress.num_rounds
        answers: Iterable[tuple[Prompt, Completion]]
        if number < num_given:
            prompts = given[number * size : (number + 1) * size]
            answers = zip(prompts, engine.generate(prompts, sampling), strict=True)
        else:
            rounds = rounds or Rounds(engine, size, passages, seed)
            pairs = rounds.answers(number - num_given, sampling)
            answers = ((pair.chat, pair.answer) for pair in pairs)
        files.add_round(_line(engine.encode(prompt).tolist(), answer) for prompt, answer in answers)
    on_progress(files.progress.num_answers)


def _sampling() -> SamplingParams:
    return SamplingParams(max_tokens=MAX_ANSWER_TOKENS, logprobs=NUM_TOP_IDS)


def _line(prompt: list[int], answer: Completion) -> str:
    assert answer.logprobs is not None
    tops = [token.top[:NUM_TOP_IDS] for token in answer.logprobs]
    record = {
        "prompt": prompt,
        "answer": list(answer.token_ids),
        "top_ids": [token_id for top in tops for token_id, _ in top],
        "top_probs": [
            round(math.exp(logprob) * PROBABILITY_UNITS) for top in tops for _, logprob in top
        ],
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def _drop_unfinished_line(path: Path) -> int:
    """Remove a killed process's incomplete last line. Return the number of lines."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return 0
    with path.open("r+b") as file:
        cut_torn_line(file)
        return sum(1 for _ in file)


def _prompts(engine: Engine, files: Sequence[Path], num_done: int) -> Iterator[Prompt]:
    num_given = 0
    for file in files:
        for prompt in read_prompts(file):
            num_given += 1
            if num_given > num_done:
                yield prompt
    yield from own_questions(engine, first_seed=max(num_done - num_given, 0))


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a JSONL file. Raises ConfigError, naming the line.

    A line has `messages`, a chat; or `turns`, of which the first is used, as in Spec-Bench; or
    `prompt`, the user's message or token ids.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            yield _prompt(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{path}, line {number}: expected an object with messages, turns or prompt, "
                f"got {line!r:.80}"
            ) from error


def _prompt(record: dict[str, Any]) -> Prompt:
    if "messages" in record:
        return list(record["messages"])
    said = record["turns"][0] if "turns" in record else record["prompt"]
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    return [int(token_id) for token_id in said]


def own_questions(engine: Engine, first_seed: int = 0) -> Iterator[Prompt]:
    """Yield an endless series of questions written by the target, as prompts of token ids.

    Raises ConfigError if its chat template has no place for them.
    """
    before, after = _around_question(engine.tokenizer)
    encode = engine.tokenizer.backend_tokenizer.encode
    seed = first_seed
    while True:
        sampling = SamplingParams(
            max_tokens=MAX_QUESTION_TOKENS, temperature=1.0, top_p=0.95, seed=seed
        )
        seed += MAX_CHOICES
        for asked in engine.generate([before], sampling, n=MAX_CHOICES):
            if asked.finish_reason is FinishReason.STOP and (text := asked.text.strip()):
                yield [*before, *encode(text, add_special_tokens=False).ids, *after]


def _around_question(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the template's token ids before and after a user's message."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the target has no chat template to write questions from: give prompts in files"
        )
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": _QUESTION_PLACE}], tokenize=False, add_generation_prompt=True
    )
    before, found, after = text.partition(_QUESTION_PLACE)
    if not found:
        raise ConfigError("the target's chat template changes the user's message")
    encode = tokenizer.backend_tokenizer.encode
    ids = (list(encode(part, add_special_tokens=False).ids) for part in (before, after))
    return next(ids), next(ids)
