"""Answers put together from chunks, compared with whole ones."""

from typing import Any

from benchmarks.soak.answer import Answer


def answer_of(*chunks: list[dict[str, Any]]) -> Answer:
    answer = Answer()
    for chunk in chunks:
        answer.add(chunk)
    return answer


def delta(index: int, token_id: int, **message: Any) -> dict[str, Any]:
    return {"index": index, "delta": message, "token_ids": [token_id], "finish_reason": None}


def whole(index: int, token_ids: list[int], **message: Any) -> dict[str, Any]:
    return {"index": index, "message": message, "token_ids": token_ids, "finish_reason": "stop"}


END = {"delta": {}, "finish_reason": "stop"}


def test_the_chunks_of_several_choices_are_the_whole_answer():
    expected = answer_of([whole(0, [1, 2], content="ab"), whole(1, [3], content="c")])
    streamed = answer_of(
        [delta(0, 1, content="a")],
        [delta(1, 3, content="c")],
        [delta(0, 2, content="b"), {"index": 0, **END}],
    )
    assert streamed != expected
    assert streamed.is_beginning_of(expected)
    streamed.add([{"index": 1, **END}])
    assert streamed == expected


def test_the_parts_of_a_call_are_the_whole_call():
    call = {"id": "x", "function": {"name": "weather", "arguments": '{"a": 1}'}}
    parts = [
        {"index": 0, "id": "y", "function": {"name": "weather", "arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    streamed = answer_of(
        *([delta(0, number, tool_calls=[part])] for number, part in enumerate(parts))
    )
    streamed.add([{"index": 0, **END}])
    assert streamed == answer_of([whole(0, [0, 1], content=None, tool_calls=[call])])


def test_another_token_or_choice_is_no_beginning():
    expected = answer_of([whole(0, [1, 2], content="ab")])
    assert answer_of().is_beginning_of(expected)
    assert not answer_of([delta(0, 2, content="a")]).is_beginning_of(expected)
    assert not answer_of([delta(0, 1, content="b")]).is_beginning_of(expected)
    assert not answer_of([delta(1, 1, content="a")]).is_beginning_of(expected)
