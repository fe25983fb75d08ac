"""Everything that the pages tell readers to type is run by the first day, or marked why not."""

from pathlib import Path

import pytest

from benchmarks.first_day.blocks import Block, blocks
from benchmarks.first_day.typed import PAGES, Typed, typed_in, typed_on

ON_PAGES = [typed for page in PAGES for typed in typed_on(page)]


def typed(text: str, note: str = "", language: str = "bash") -> list[Typed]:
    return list(typed_in(Block(Path("page.md"), 1, language, text, note)))


@pytest.mark.parametrize("found", ON_PAGES, ids=lambda found: f"{found.block} {found.text[:40]}")
def test_all_that_pages_tell_readers_to_type_is_run_or_marked(found: Typed):
    assert found.is_known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_blocks_are_outputs_or_marked(page: Path):
    others = [block for block in blocks(page) if block.language not in ("bash", "python", "text")]
    assert [str(block) for block in others if not block.note] == []


def test_quotes_and_backslashes_continue_a_command_and_comments_are_left_out():
    [first, second] = typed(
        "curl URL -d '{\n  \"a\": 1}'  # the paper's\n# ready\nray up \\\n  x &\n"
    )
    assert first.text == "curl URL -d '{\n  \"a\": 1}'"
    assert second.text == "ray up \\\n  x"


def test_a_mark_holds_for_a_block_or_for_the_commands_that_begin_so():
    assert [found.obstacle for found in typed("make a\nmake b\n", "needs time")] == [
        "needs time"
    ] * 2
    found = typed("make a\nmake b\n", "needs time: make b; needs a service")
    assert [one.obstacle for one in found] == [None, "needs time"]


def test_a_marked_file_is_saved_before_the_commands_that_use_it():
    [found] = typed("print(1)\n", "file compare.py; needs a service", "python")
    assert found.file == "compare.py" and found.obstacle is None and not found.is_program


def test_a_service_is_known_by_its_command_and_port():
    [served, drafted, other] = typed(
        "diffuspec serve\npython -m deploy.grpc --role drafter --port 7003\ndiffuspec env\n"
    )
    assert (served.port, drafted.port) == (8000, 7003)
    assert served.ready and drafted.ready and not other.ready
