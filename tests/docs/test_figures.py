"""A figure that several documents repeat is the one of its place: a row of measurements."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from benchmarks.studies.vllm import SPECULATIVE
from diffuspec.cli.draft_server import EXAMPLES
from tests.support.documents import DOCUMENTS, ROOT, blocks

README, ENGINES, RESULTS = "README.md", "docs/engines.md", "docs/results.md"
COMMIT = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,8}\b")
SPEED_UP = re.compile(r"\d+\.\d+(?=x\b| times)")
NUMBER = re.compile(r"[\d.]+")


@dataclass(frozen=True)
class Figure:
    """A number in a column of the first row that begins so, and the patterns that repeat it."""

    place: str
    row: str
    column: int
    repeats: tuple[tuple[str, str], ...]

    def value(self) -> float:
        lines = (ROOT / self.place).read_text(encoding="utf-8").splitlines()
        row = next(line for line in lines if line.startswith(self.row))
        cell = row.split("|")[self.column].replace("*", "")
        number = SPEED_UP.search(cell) or NUMBER.search(cell)
        assert number, row
        return float(number[0])


FIGURES = [
    Figure(
        RESULTS,
        "| EPYC of Zen 4, 2e8ad809 | 24,",
        5,
        (
            (README, r"SmolLM2-135M \(not trained by us\).*?\*\*([\d.]+)x\*\*"),
            (RESULTS, r"Spec-Bench's own questions: ([\d.]+)x"),
        ),
    ),
    Figure(
        RESULTS,
        "| EPYC of Zen 4, 2e8ad809 | 24,",
        7,
        ((README, r"95 %: [\d.]+ to [\d.]+\) \| ([\d.]+) \| AMD EPYC of Zen 4 \| 2e8ad80 "),),
    ),
    Figure(
        RESULTS,
        "| Xeon without AMX, e6e71d5 |",
        4,
        (
            (README, r"its own \| ([\d.]+)x \("),
            (RESULTS, r"embedded pair, one core: .*?, ([\d.]+)x over plain"),
        ),
    ),
    Figure(
        RESULTS,
        "| Xeon without AMX, b2bf85d | 24,",
        5,
        (
            (README, r"without AMX the first row has ([\d.]+)x"),
            (RESULTS, r"; ([\d.]+)x on a Xeon without AMX"),
        ),
    ),
    Figure(
        RESULTS, "| Xeon with AMX, c011e48 | 24,", 5, ((README, r"AMX the first has ([\d.]+)x"),)
    ),
    Figure(RESULTS, "| 512 | 16 | 8.1", 8, ((README, r"Dream-7B's size \| ([\d.]+)x, computed"),)),
    Figure(
        ENGINES,
        "| 1 | 1.33x",
        4,
        (
            (README, r"in vLLM .*?\(docs/engines.md\) \| ([\d.]+)x"),
            (ENGINES, r"SmolLM2 becomes ([\d.]+) times as fast with one"),
            (RESULTS, r"SmolLM2-135M, bfloat16: ([\d.]+)x over vLLM alone"),
        ),
    ),
    Figure(
        ENGINES,
        "| 8 | 0.60x",
        4,
        (
            (ENGINES, r"\n([\d.]+) times with eight"),
            (RESULTS, r"n-grams 1.33x\), ([\d.]+)x with 8"),
        ),
    ),
    Figure(
        ENGINES, "A Xeon with AVX-512 had 1.28x", 0, ((README, r"and the third ([\d.]+)x, on one"),)
    ),
]
# The quotient of the tokens/s in a row, which no cell holds.
TIMES_TRANSFORMERS = (
    (README, r"; ([\d.]+) times transformers"),
    (RESULTS, r"plain decoding, ([\d.]+) times as fast as transformers"),
)


def repeated(document: str, pattern: str) -> re.Match[str]:
    [match] = re.finditer(pattern, (ROOT / document).read_text(encoding="utf-8"))
    return match


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.row} {figure.column}")
def test_what_is_repeated_is_the_number_of_its_row(figure: Figure) -> None:
    for document, pattern in figure.repeats:
        given = repeated(document, pattern)[1]
        digits = len(given.partition(".")[2])
        assert given == f"{figure.value():.{digits}f}", document


def test_times_transformers_is_the_quotient_of_its_row() -> None:
    row = (ROOT / RESULTS).read_text(encoding="utf-8")
    [cells] = re.findall(r"\| Xeon without AMX, e6e71d5 \| 596 \| \| ([\d,]+) .*? \| (\d+) \|", row)
    drafted, transformers = (float(cell.replace(",", "")) for cell in cells)
    for document, pattern in TIMES_TRANSFORMERS:
        assert repeated(document, pattern)[1] == f"{drafted / transformers:.1f}", document


def test_every_speed_up_of_the_readme_and_without_a_commit_of_the_engines_is_held() -> None:
    held = [repeat for figure in FIGURES for repeat in figure.repeats] + [*TIMES_TRANSFORMERS]
    for document in (README, ENGINES):
        text = (ROOT / document).read_text(encoding="utf-8")
        spans = {repeated(name, pattern).start(1) for name, pattern in held if name == document}
        offset = 0
        for line in text.splitlines(keepends=True):
            is_source = document == ENGINES and COMMIT.search(line)
            for number in SPEED_UP.finditer(line):
                assert is_source or offset + number.start() in spans, (document, line)
            offset += len(line)


def test_examples_of_vllm_have_the_draft_length_that_was_measured() -> None:
    config = SPECULATIVE["diffuspec"]
    assert config is not None
    measured = config["num_speculative_tokens"]
    texts = [block.text for path in DOCUMENTS for block in blocks(path)]
    texts += [EXAMPLES, (ROOT / "deploy" / "serve_vllm.yaml").read_text(encoding="utf-8")]
    proposed = [text for text in texts if "vllm.Proposer" in text]
    numbers = re.findall(r"num_speculative_tokens\"?: (\d+)", "".join(proposed))
    assert len(numbers) == len(proposed) > 3 and {*map(int, numbers)} == {measured}


def test_examples_in_python_name_no_model_that_only_one_server_has() -> None:
    named = [str(b) for path in DOCUMENTS for b in blocks(path) if re.search(r'model="', b.text)]
    assert not named
