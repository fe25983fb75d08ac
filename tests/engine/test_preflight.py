"""Files are checked before weights are read: all faults at once, each by its key."""

import json
from pathlib import Path

import pytest

from diffuspec.core.errors import ConfigError, ModelLoadError, NgramError, VocabularyError
from diffuspec.core.faults import Faults
from diffuspec.engine.preflight import check_files
from diffuspec.pairs import parse_config
from diffuspec.pairs.tiny import DRAFTER, HEADS, NGRAM, TARGET

TINY = {"target": {"path": TARGET}, "drafter": {"path": DRAFTER}}


def copied(source: Path, target: Path) -> Path:
    """Link a model's files in a new directory, so that one can be replaced."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    return target


def replaced(directory: Path, name: str, text: str) -> Path:
    (directory / name).unlink()
    (directory / name).write_text(text)
    return directory


def other_vocabulary(directory: Path) -> Path:
    """Give a drafter's tokenizer one token another meaning."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    return replaced(directory, "tokenizer.json", json.dumps(tokenizer))


def test_files_that_are_right_pass() -> None:
    others = {kind: {"kind": kind, "path": path} for kind, path in HEADS.items()}
    check_files(parse_config({**TINY, "drafters": others, "search": {"ngram": NGRAM}}))


def test_a_wrong_chat_template_is_told_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "a.jinja"
    target = {"path": TARGET, "chat_template": file}
    with pytest.raises(ConfigError, match=r"target\.chat_template: the file .* does not exist"):
        check_files(parse_config(TINY | {"target": target}))
    file.write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"target\.chat_template: .* is wrong in line 1"):
        check_files(parse_config(TINY | {"target": target}))


def test_all_faults_are_told_at_once_each_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").write_bytes(b"\0" * 64)
    (tmp_path / "empty").mkdir()
    config = parse_config(
        {
            "target": {"path": TARGET},
            "drafter": {"path": other_vocabulary(copied(DRAFTER, tmp_path / "d"))},
            "drafters": {
                "medusa": {"kind": "medusa", "path": tmp_path / "empty"},
                "sps": {"kind": "sps", "path": tmp_path / "empty"},
            },
            "search": {"ngram": tmp_path / "mine.bin"},
        }
    )
    with pytest.raises(ConfigError) as error:
        check_files(config)
    for key in ("drafter", "drafters.medusa", "drafters.sps"):
        assert f"{key}.path: {tmp_path}" in str(error.value)
    assert f"search.ngram: {tmp_path}/mine.bin" in str(error.value)


def test_all_missing_files_are_told_at_once() -> None:
    config = parse_config(
        {
            "target": {"path": "no-target"},
            "drafter": {"path": "no-drafter"},
            "drafters": {"samd": {"kind": "samd", "texts": "no.txt"}},
            "search": {"ngram": "no.bin", "causal_lm": None},
        }
    )
    with pytest.raises(ConfigError) as error:
        check_files(config)
    assert str(error.value).split("; ") == [
        "target.path: model directory no-target does not exist",
        "drafter.path: model directory no-drafter does not exist",
        "drafters.samd.texts: the file no.txt does not exist",
        "search.ngram: n-gram model no.bin does not exist",
    ]


@pytest.mark.parametrize(
    ("sections", "kind", "message"),
    [
        ({"target": {"path": "nowhere"}}, ModelLoadError, "target.path: model directory nowhere"),
        ({"drafter": {"path": "nowhere"}}, ModelLoadError, "drafter.path: model directory"),
        ({"search": {"ngram": "no.bin"}}, ConfigError, "search.ngram: n-gram model no.bin does"),
        ({"search": {"ngram": __file__}}, NgramError, "search.ngram: "),
        ({"search": {"causal_lm": "no"}}, ModelLoadError, "search.causal_lm: model directory no"),
    ],
)
def test_a_single_fault_keeps_its_type(sections, kind, message):
    with pytest.raises(kind) as error:
        check_files(parse_config({**TINY, **sections}))
    assert str(error.value).startswith(message)


def test_a_drafter_of_other_tokens_is_found_by_the_tokenizers_alone(tmp_path: Path) -> None:
    drafter = other_vocabulary(copied(DRAFTER, tmp_path / "d"))
    (drafter / "model.safetensors").unlink()
    (drafter / "model.safetensors").write_bytes((DRAFTER / "model.safetensors").read_bytes())
    with pytest.raises(VocabularyError, match=r"^drafter\.path: .* give different meanings"):
        check_files(parse_config({**TINY, "drafter": {"path": drafter}}))


def test_equal_faults_are_told_once() -> None:
    def fail() -> None:
        raise ConfigError("a is 1")

    faults = Faults()
    assert faults.check("", lambda: 3) == 3
    assert faults.check("", fail) is None and faults.check("", fail) is None
    with pytest.raises(ConfigError, match=r"^a is 1$"):
        faults.raise_all()
