import json


def test_audit_answers_with_and_without_drafts_and_counts_what_differs(diffuspec, tmp_path):
    questions = tmp_path / "questions.jsonl"
    lines = [
        {"question_id": number, "category": "qa", "turns": [f"What is the capital of {country}?"]}
        for number, country in enumerate(["France", "Italy"])
    ]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = diffuspec("audit", "--questions", str(questions), "--max-tokens", "8")
    assert result.exit_code == 0
    assert result.stdout == "2 answers, 16 tokens: 0 differ\n"
