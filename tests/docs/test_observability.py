"""The page about watching a service has every series and every panel of the dashboard."""

import runpy

import pytest

from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "observability.md"
GENERATOR = runpy.run_path(str(ROOT / "docs" / "make_observability.py"))


def test_the_tables_are_what_the_code_says():
    assert GENERATOR["main"](["--check"]) == 0, "run make docs"


def test_a_stale_table_is_made_again_and_a_missing_one_is_missed():
    page = PAGE.read_text(encoding="utf-8")
    assert GENERATOR["render"](page.replace("Requests decoding.", "Something else.")) == page
    with pytest.raises(ValueError, match="the page must have <!-- http: begin -->"):
        GENERATOR["render"](page.replace("<!-- http: begin -->", ""))


def test_counters_have_the_names_that_prometheus_is_told():
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    counters = [row[1].strip(" `") for row in rows if len(row) > 2 and row[2] == " counter "]
    assert counters and all(name.endswith("_total") for name in counters)
