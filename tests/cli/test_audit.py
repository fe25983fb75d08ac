from tests.bench.conftest import write_lines
from tests.cli.conftest import printed


def test_audit_answers_with_and_without_drafts_and_counts_what_differs(diffuspec, tmp_path):
    questions = tmp_path / "questions.jsonl"
    lines = [
        {"question_id": number, "category": "qa", "turns": [f"What is the capital of {country}?"]}
        for number, country in enumerate(["France", "Italy"])
    ]
    write_lines(questions, lines)
    said = printed(diffuspec("audit", "--questions", questions, "--max-tokens", "8"))
    assert said == "2 answers, 16 tokens: 0 differ\n"
