"""The paper's ablations, and a sweep on a small random pair."""

from diffuspec.bench.questions import Question
from diffuspec.bench.run import RunSettings, find_mismatches
from diffuspec.bench.studies.ablations import PAPER, PaperFigures, Sweep, Variant, sweeps
from diffuspec.bench.studies.sweeps import (
    ablation_config,
    distinct_settings,
    num_answers,
    run_settings,
    sweep_results,
)
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config

QUESTIONS = [Question(1, "qa", ("hello",)), Question(2, "writing", ("well", "so?"))]


def test_the_sweeps_are_the_papers() -> None:
    found = {sweep.name: [variant.label for variant in sweep.variants] for sweep in sweeps()}
    assert found == {
        "cps_adl": ["CPS and ADL", "CPS", "ADL", "neither"],
        "draft_length": ["10", "20", "30", "50", "100", "ADL", "cost-aware"],
        "refinement_steps": ["1", "2", "4", "8"],
        "beam_width": ["1", "2", "3", "4", "5"],
        "max_candidates": ["5", "10", "15", "20"],
        "candidate_mass": ["0.5", "0.6", "0.7", "0.8", "0.9"],
    }


def test_a_default_is_the_papers_best_and_changes_nothing(pair_config):
    defaults = {"refinement_steps": "1", "beam_width": "3", "max_candidates": "15"}
    for sweep in sweeps():
        for variant in sweep.variants:
            if variant.label == defaults.get(sweep.name):
                assert variant.apply(pair_config) == pair_config
                assert variant.paper == PaperFigures(6.99, 3.08)


def test_switching_off_cps_trusts_the_drafter_and_switching_off_adl_fixes_the_length() -> None:
    both, no_adl, no_cps, neither = (variant.speculation for variant in sweeps()[0].variants)
    assert [(s.policy, s.drafter_weight) for s in (both, no_adl, no_cps, neither)] == [
        ("paper", 0.5),
        ("fixed", 0.5),
        ("paper", 1.0),
        ("fixed", 1.0),
    ]
    assert {s.tree_shape for s in (both, no_adl, no_cps, neither)} == {"path"}


def test_every_change_is_a_valid_configuration(pair_config):
    for sweep in sweeps():
        for variant in sweep.variants:
            changed = variant.apply(ablation_config(pair_config))
            assert parse_config(changed.model_dump()) == changed


def test_what_sweeps_have_in_common_is_measured_once(pair_config):
    found = distinct_settings(sweeps(), ablation_config(pair_config))
    papers = next(one for one in found if one.name == "cps_adl CPS and ADL")
    assert papers.places == [
        ("cps_adl", "CPS and ADL"),
        ("draft_length", "ADL"),
        ("refinement_steps", "1"),
        ("beam_width", "3"),
        ("max_candidates", "15"),
        ("candidate_mass", "0.8"),
    ]
    num_variants = sum(len(sweep.variants) for sweep in sweeps())
    assert len(found) == num_variants - 5 - 1  # drafts of 20 tokens are without ADL, too
    assert num_answers(len(found), QUESTIONS, num_repeats=2) == 3 * 2 * (1 + len(found))


def test_a_sweep_is_measured_tabulated_and_drawn(pair_config, tmp_path):
    variants = tuple(
        Variant(str(steps), steps, PAPER, ("drafter", "num_refinement_steps", steps), paper)
        for steps, paper in ((1, PaperFigures(6.99, 3.08)), (4, None))
    )
    sweep = Sweep("refinement", "Refinement", "steps", variants, shows_families=True)
    answers: list[str] = []
    with Engine.from_config(ablation_config(pair_config)) as engine:
        settings = RunSettings(max_tokens=16, max_model_len=192)
        measured = distinct_settings([sweep], engine.config)
        run = run_settings(
            measured, engine, QUESTIONS, settings, lambda record: answers.append(record.system)
        )
    [result] = sweep_results([sweep], measured, run)
    assert len(answers) == num_answers(2, QUESTIONS, 1)
    assert find_mismatches(run.records) == []
    assert result.row("4").num_output_tokens == result.row("plain").num_output_tokens
    # More passes over the block make its later tokens fit the earlier ones.
    assert 1 < result.row("1").mean_acceptance_length < result.row("4").mean_acceptance_length
    table, *families = result.tables()
    assert [cells[0] for cells in table.cells] == ["1", "4"]
    assert [cells[-1] for cells in table.cells] == ["3.08x", ""]
    assert families[0].columns == ("family", "1", "4")
    data = result.to_json()
    assert [variant["paper"] is None for variant in data["variants"]] == [False, True]
    assert {row["family"] for row in data["plain"]} == {"qa", "mt_bench", "all"}
    result.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
