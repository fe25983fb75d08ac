import json
import logging
from pathlib import Path

import pytest

from diffuspec.cli.engine_config import compose
from diffuspec.cli.options import EngineOptions
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import (
    DrafterError,
    ModelLoadError,
    OverloadedError,
    VerifierError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput
from diffuspec.pairs import parse_config
from tests.cli.conftest import STEP, TEXT, FakeEngine, error_line
from tests.support.fakes import FAKE_TARGET

QUESTION = [{"role": "user", "content": "Hi there"}]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
@pytest.mark.parametrize("source", ["argument", "file", "stdin", "-"])
def test_prompt_comes_from_argument_file_or_stdin(diffuspec, engine, tmp_path, source, ending):
    file = tmp_path / "question.txt"
    file.write_bytes(b"Hi there" + ending.encode())
    arguments = {"argument": ["Hi there"], "file": ["--file", str(file)], "stdin": [], "-": ["-"]}
    result = diffuspec("generate", *arguments[source], stdin="Hi there" + ending)
    assert result.exit_code == 0
    assert engine.last.prompt == QUESTION


def test_text_on_stdout_and_statistics_on_stderr(diffuspec, engine):
    result = diffuspec("generate", "Hi there")
    assert result.stdout == f"{TEXT}\n"
    assert result.stderr == (
        "5 + 4 tokens · 0.10 s, 40 tokens/s · 2 steps of 2.00 tokens"
        " · draft 10% · search 5% · verify 80%\n"
    )
    assert engine.last.is_closed


def test_plans_are_explained_on_stderr_before_the_answer(diffuspec, engine):
    result = diffuspec("generate", "Hi there", "--quiet", "--explain-schedule")
    assert result.output == f"verify 1, draft []\n{TEXT}\n"
    assert result.stdout == f"{TEXT}\n"


def test_quiet_drops_the_statistics(diffuspec, engine):
    result = diffuspec("generate", "Hi there", "--quiet")
    assert (result.stdout, result.stderr) == (f"{TEXT}\n", "")


def test_terminal_tells_accepted_from_own_tokens(diffuspec, engine, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    result = diffuspec("generate", "Hi there")
    green, yellow, end = "\x1b[32m", "\x1b[1;33m", "\x1b[0m"
    assert f"{green}Gr{end}{green}üße{end}{yellow}, {end}{yellow}Welt{end}\n" == result.stdout
    assert "drafted and accepted" in result.stderr


def test_terminal_gets_no_commands_from_the_model(diffuspec, engine, monkeypatch):
    async def erase(self: FakeEngine, prompt: object, sampling: object):
        yield RequestOutput((1,), 0, ("\x1b[2J",), "\x1b[2J", None, None, STEP)

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(engine, "stream", erase)
    result = diffuspec("generate", "Hi there", "--quiet")
    assert "␛[2J" in result.stdout and "\x1b[2J" not in result.stdout


def test_json_holds_tokens_text_and_statistics(diffuspec, engine):
    result = diffuspec("generate", "Hi there", "--json")
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    answer = json.loads(result.stdout)
    statistics = answer.pop("statistics")
    ends = {"finish_reason": "stop", "stop_reason": None}
    assert answer == {"token_ids": [7, 8, 9, 2], "text": TEXT, "seed": None, **ends}
    assert statistics["num_prompt_tokens"] == 5
    assert statistics["num_output_tokens"] == 4
    assert statistics["num_steps"] == 2
    assert statistics["num_accepted_tokens"] == 2
    assert statistics["mean_acceptance_length"] == 2.0
    assert statistics["tokens_per_second"] == pytest.approx(40)


def test_json_holds_logprobs_when_asked(diffuspec, engine):
    result = diffuspec("generate", "Hi there", "--json", "--logprobs", "2")
    logprobs = json.loads(result.stdout)["logprobs"]
    assert [entry["token_id"] for entry in logprobs] == [7, 8, 9, 2]
    top = [{"token_id": 7, "logprob": -0.5}, {"token_id": 9, "logprob": -1.5}]
    assert logprobs[0] == {"token_id": 7, "logprob": -0.5, "top": top}


def test_a_byte_order_mark_is_no_part_of_a_prompt(diffuspec, engine):
    diffuspec("generate", "--raw", stdin="\ufeffdef f(\r\n")
    assert engine.last.prompt == "def f("


def test_raw_prompt_is_text_and_system_is_a_message(diffuspec, engine):
    diffuspec("generate", "def f(", "--raw")
    assert engine.last.prompt == "def f("
    diffuspec("generate", "Hi there", "--system", "Be brief.")
    assert engine.last.prompt == [{"role": "system", "content": "Be brief."}, *QUESTION]


def test_sampling_options_arrive(diffuspec, engine):
    diffuspec("generate", "Hi")
    assert engine.last.sampling == SamplingParams()
    options = (
        "--temperature 0.7 --top-p 0.9 --top-k 40 --seed -3 --repetition-penalty 1.1"
        " --presence-penalty 0.2 --frequency-penalty -0.3 --max-tokens 12"
        " --stop END --stop ### --stop-token-id 5 --stop-token-id 6 --ignore-eos"
        " --no-skip-special-tokens"
    )
    diffuspec("generate", "Hi", *options.split())
    assert engine.last.sampling == SamplingParams(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        seed=-3,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        max_tokens=12,
        stop=("END", "###"),
        stop_token_ids=(5, 6),
        ignore_eos=True,
        skip_special_tokens=False,
    )


@pytest.mark.parametrize(
    ("room", "options", "expected"),
    [(200, (), 200), (300, (), 256), (200, ("--max-tokens", 250), 250)],
)
def test_an_answer_without_a_limit_ends_with_the_context(
    diffuspec, engine, monkeypatch, room, options, expected
):
    monkeypatch.setattr(engine, "num_prompt_tokens", FAKE_TARGET.max_model_len - room)
    diffuspec("generate", "Hello", *options)
    assert engine.last.sampling.max_tokens == expected


def test_a_seed_that_was_not_given_is_drawn_and_told(diffuspec, engine):
    answers = [diffuspec("generate", "Hi", "--temperature", "1", "--json") for _ in range(2)]
    drawn = [json.loads(answer.stdout)["seed"] for answer in answers]
    assert drawn[0] != drawn[1] and engine.last.sampling.seed == drawn[1]
    shown = diffuspec("generate", "Hi", "--temperature", "1").stderr
    assert shown.endswith(f" · seed {engine.last.sampling.seed}\n")


def models(config: EngineConfig) -> tuple[str, str | None, str | None]:
    drafter, ngram = config.drafter, config.search.ngram
    return (
        str(config.target.path),
        None if drafter is None else str(getattr(drafter, "path", drafter.kind)),
        None if ngram is None else str(ngram),
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ("tiny/target", "tiny/drafter", "tiny/ngram.bin")),
        ("--drafter none", ("tiny/target", None, "tiny/ngram.bin")),
        ("--ngram none", ("tiny/target", "tiny/drafter", None)),
        ("--drafter other", ("tiny/target", "other", "tiny/ngram.bin")),
        ("--target big", ("big", None, None)),
        ("--target big --drafter d --ngram n.arpa", ("big", "d", "n.arpa")),
        ("--config FILE", ("yaml/target", "yaml/drafter", "yaml.bin")),
        ("--drafter-kind pld", ("tiny/target", "pld", "tiny/ngram.bin")),
        ("--drafter-kind diffuspec", ("tiny/target", "tiny/drafter", "tiny/ngram.bin")),
        ("--drafter-kind hydra", ("tiny/target", "tiny/hydra", "tiny/ngram.bin")),
        ("--target big --drafter-kind pld", ("big", "pld", None)),
        ("--target big --drafter-kind eagle2 --drafter head", ("big", "head", None)),
        ("--config FILE --drafter-kind pld", ("yaml/target", "pld", "yaml.bin")),
        ("--config FILE --target big --drafter none", ("big", None, "yaml.bin")),
    ],
)
def test_models_are_embedded_named_or_configured(diffuspec, engine, tmp_path, options, expected):
    file = tmp_path / "engine.yaml"
    file.write_text(
        "target: {path: yaml/target}\n"
        "drafter: {path: yaml/drafter, prefix_cache: false}\n"
        "search: {ngram: yaml.bin}\n"
    )
    result = diffuspec("generate", "Hi", *options.replace("FILE", str(file)).split())
    assert result.exit_code == 0, result.stderr
    assert models(engine.last.config) == expected


def test_options_override_a_field_and_keep_the_others_of_the_file(diffuspec, engine, tmp_path):
    file = tmp_path / "engine.yaml"
    file.write_text(
        "target: {path: t, max_sequences: 3}\n"
        "drafter: {path: d, prefix_cache: false}\n"
        "speculation: {max_nodes: 9, tree_shape: path}\n"
    )
    other = ["--drafter", "other", "--drafter-block-size", "32"]
    diffuspec("generate", "Hi", "--config", file, *other, "--tree", "beams")
    config = engine.last.config
    assert config.target.max_sequences == 3
    assert isinstance(config.drafter, DiffuSpecConfig)
    assert (str(config.drafter.path), config.drafter.prefix_cache) == ("other", False)
    assert config.drafter.block_size == 32
    assert (config.speculation.max_nodes, config.speculation.tree_shape) == (9, "beams")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("--draft-length paper", {"policy": "paper"}),
        ("--draft-length fixed", {"policy": "fixed"}),
        ("--draft-length off", {"policy": "off"}),
        ("--draft-length 12", {"policy": "fixed", "num_draft_tokens": 12}),
        ("--tree path --max-nodes 7", {"tree_shape": "path", "max_nodes": 7}),
        ("--max-nodes 200", {"max_nodes": 200}),  # large trees make room for themselves
        ("--drafter-weight 0.25", {"drafter_weight": 0.25}),
        ("--drafter-weight adaptive", {"drafter_weight": "adaptive"}),
    ],
)
def test_drafting_options_arrive(diffuspec, engine, options, expected):
    result = diffuspec("generate", "Hi", *options.split())
    assert result.exit_code == 0, result.stderr
    assert engine.last.config.speculation == SpeculationParams(**expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--temperature -1", "temperature must be from 0 to 10, got -1.0"),
        ("--temperature nan", "temperature must be from 0 to 10, got nan"),
        ("--top-p 0", "top_p must be above 0 and at most 1, got 0.0"),
        ("--max-tokens 0", "max_tokens must be 1 or more, got 0"),
        ("--logprobs 21 --json", "logprobs must be from 0 to 20, got 21"),
        ("--logprobs 2", "--logprobs needs --json"),
        ("--raw --system x", "--system needs a chat, --raw sends none"),
        ("--file nowhere.txt", "give the prompt as the argument or with --file, not both"),
        ("--drafter none --ngram f.bin", "--ngram has no effect without a drafter"),
        ("--pair small", "--pair must be tiny or smollm2, got 'small'"),
        ("--pair tiny --target big", "--pair and --target exclude each other"),
        ("--pair tiny --config f.yaml", "--pair and --config exclude each other"),
        ("--dtype int8", "target.dtype must be"),
        ("--target other --ngram f.bin", "--ngram has no effect without a drafter"),
        ("--drafter none --drafter-kind pld", "--drafter none and --drafter-kind exclude each"),
        ("--drafter none --drafter-block-size 8", "--drafter-block-size has no effect without"),
        (
            "--drafter-kind pld --drafter-block-size 8",
            "--drafter-block-size has no effect on the kind pld",
        ),
        ("--drafter d --drafter-kind pld", "--drafter DIR has no effect on the kind pld"),
        ("--ngram f.bin --drafter-kind pld", "--ngram has no effect on a drafter of the kind pld"),
        ("--drafter-kind oracle", "drafter.kind must be 'diffuspec', "),
        (
            "--target other --drafter-kind diffuspec",
            "the drafter diffuspec needs its model: give --drafter DIR",
        ),
        ("--drafter none --tree path", "the drafting options have no effect without a drafter"),
        ("--draft-length soon", "--draft-length must be paper, cost_aware, fixed, off or a number"),
        ("--draft-length 500", "num_draft_tokens must be from 1 to 128, got 500"),
        ("--max-nodes 0", "max_nodes must be from 1 to 256, got 0"),
        ("--drafter-weight 2", "drafter_weight must be from 0 to 1, or 'adaptive', got 2"),
        ("--drafter-weight x", "drafter_weight must be a number, or 'adaptive', got 'x'"),
        ("--drafter-weight nan", "drafter_weight must be from 0 to 1, or 'adaptive', got nan"),
        ("--config nowhere.yaml", "cannot read configuration nowhere.yaml"),
    ],
)
def test_wrong_values_are_named_in_one_line(diffuspec, engine, options, message):
    result = diffuspec("generate", "Hi", *options.split())
    assert error_line(result).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([""], b"", "the prompt is empty"),
        ([], b" \n", "the prompt is empty: give it as the argument, with --file, or on stdin"),
        ([], b"\xff\xfe", "standard input is not UTF-8 text"),
        (["--file", "nowhere.txt"], b"", "cannot read nowhere.txt: No such file or directory"),
        (["--file", "."], b"", "cannot read .: Is a directory"),
    ],
)
def test_prompts_that_cannot_be_read(diffuspec, engine, arguments, stdin, message):
    result = diffuspec("generate", *arguments, stdin=stdin)
    assert error_line(result).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--temperature hot", "--temperature must be a number, got 'hot'"),
        ("--threads 0", "--threads must be greater than or equal to 1, got '0'"),
        ("--threads 257", "--threads must be less than or equal to 256, got '257'"),
        ("--stop-token-id x", "--stop-token-id must be an integer, got 'x'"),
        ("--tree bush", "invalid value for '--tree': 'bush' is not one of 'path', 'beams'"),
        ("--typo", "no such option: --typo"),
        ("another", "got unexpected extra argument(s) (another)"),
    ],
)
def test_usage_errors_are_one_line_that_names_the_help(diffuspec, engine, options, message):
    result = diffuspec("generate", "Hi", *options.split())
    line = error_line(result)
    assert line.startswith(message) and line.endswith(" generate --help)")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerifierError("the target\nfailed"), 1),
        (DrafterError("the target failed"), 1),
        (OverloadedError("the target failed"), 1),
        (ModelLoadError("the target failed"), 2),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_errors_are_one_line_and_an_exit_code(diffuspec, engine, error, code, options):
    engine.error = error
    result = diffuspec("generate", "Hi", *options)
    assert error_line(result, code) == "the target failed"
    assert engine.last.is_closed


def test_what_was_done_when_is_traced_into_a_file(diffuspec, engine, tmp_path):
    path = tmp_path / "trace.json"
    assert diffuspec("generate", "Hi", "--trace", path).exit_code == 0
    assert "verify" in [event["name"] for event in json.loads(path.read_text())]
    result = diffuspec("generate", "Hi", "--trace", tmp_path / "nowhere" / "trace.json")
    assert error_line(result).startswith("cannot write a trace to ")


def test_raw_prompt_for_the_embedded_target_is_warned_of(diffuspec, engine, monkeypatch):
    warning = "warning: the embedded target was trained on chats only; it cannot continue text\n"
    monkeypatch.setattr("diffuspec.cli.generate.TARGET", Path("tiny/target"))
    assert diffuspec("generate", "Hi", "--raw", "--quiet").stderr == warning
    for options in (["--chat"], ["--raw", "--target", "other"]):
        assert diffuspec("generate", "Hi", "--quiet", *options).stderr == ""


def test_interrupt_is_one_line_and_exit_code_130(diffuspec, engine):
    engine.error = KeyboardInterrupt()
    result = diffuspec("generate", "Hi")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    assert engine.last.is_closed


def test_warnings_of_the_library_are_shown(diffuspec, engine, monkeypatch):
    def opened(config: EngineConfig, tracer: object) -> FakeEngine:
        logging.getLogger("diffuspec.pairs.tiny").warning("no proxy")
        logging.getLogger("diffuspec.pairs.tiny").info("not this")
        return FakeEngine(config)

    monkeypatch.setattr(engine, "from_config", opened)
    result = diffuspec("generate", "Hi", "--quiet")
    assert result.stderr == "warning: no proxy\n"
    assert not logging.getLogger("diffuspec").handlers


FILE = parse_config(
    {"target": {"path": "."}, "drafter": {"kind": "pld"}, "drafters": {"answers": {"kind": "samd"}}}
)


@pytest.mark.parametrize(
    ("kind", "keeps_drafters", "names", "chosen"),
    [
        (None, False, ["pld"], None),
        (None, True, ["pld", "answers"], None),
        ("answers", True, ["samd"], None),
    ],
)
def test_the_drafters_are_those_of_the_file_or_the_one_that_is_chosen(
    kind: str | None, keeps_drafters: bool, names: list[str], chosen: str | None
) -> None:
    config = compose(EngineOptions(drafter_kind=kind), file=FILE, keeps_drafters=keeps_drafters)
    assert [*config.named_drafters] == names and config.speculation.drafter == chosen
