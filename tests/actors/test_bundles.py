"""Bundles of a pipeline, and what is said when a cluster has no room for them."""

from typing import Any

import pytest

from actors.bundles import Bundle, Node, explain_shortage, find_shortages, make_bundles
from actors.settings import parse_pipeline


def bundles(**placement: Any) -> tuple[Bundle, ...]:
    return make_bundles(parse_pipeline({"engine": {"preset": "tiny"}, "placement": placement}))


def node(labels: dict[str, str] | None = None, **resources: float) -> Node:
    return Node(resources, labels or {})


def test_roles_that_belong_together_share_a_bundle():
    found = bundles(
        coordinator={"num_cpus": 0.5},
        drafter={"num_gpus": 0.9, "node": {"resources": {"drafter_node": 1}}},
        path_scorer={"num_gpus": 0.1},
        verifier={"tensor_parallel": 4, "num_gpus": 1, "node": {"labels": {"role": "verifier"}}},
    )
    assert [bundle.name for bundle in found] == ["coordinator", "drafter 0", "verifier"]
    assert found[0].resources == {"CPU": 0.5}
    assert found[1].resources == {"CPU": 2, "GPU": 1, "drafter_node": 1}
    assert found[2].resources == {"CPU": 4, "GPU": 4}
    assert found[2].labels == {"role": "verifier"}


@pytest.mark.parametrize(
    ("engine", "placement", "expected"),
    [
        ({}, {"drafter": {"count": 2}}, ["coordinator", "drafter 0", "drafter 1", "verifier"]),
        ({"drafter": None}, {}, ["coordinator", "verifier"]),
    ],
)
def test_every_drafter_of_a_pool_has_a_bundle_of_its_own_and_plain_decoding_none(
    engine, placement, expected
):
    given = {"engine": {"preset": "tiny"} | engine, "placement": placement}
    assert [bundle.name for bundle in make_bundles(parse_pipeline(given))] == expected


def test_a_drafter_that_needs_no_path_scorer_reserves_nothing_for_one():
    config = parse_pipeline({"engine": {"preset": "tiny", "drafter": {"kind": "sps", "path": "m"}}})
    _, drafter, _ = make_bundles(config)
    assert drafter.resources == {"CPU": 1}


def test_ranks_that_no_node_can_hold_together_are_named():
    asked = bundles(verifier={"tensor_parallel": 4, "num_gpus": 1})
    reasons = explain_shortage(asked, "PACK", [node(CPU=8, GPU=2), node(CPU=8, GPU=2)])
    assert reasons == ["verifier needs 4 CPU, 4 GPU on one node, the most on any is 8 CPU, 2 GPU"]


def test_labels_that_no_node_has_are_named():
    asked = bundles(verifier={"node": {"labels": {"role": "verifier"}}})
    lacking = "verifier needs a node with labels {'role': 'verifier'}, there is none"
    drafter, head = (node({"role": role}, CPU=8) for role in ("drafter", "head"))
    reasons = explain_shortage(asked, "PACK", [head, drafter])
    assert reasons == [f"{lacking}: nodes have role drafter, head"]
    assert explain_shortage(asked, "PACK", [node(CPU=8)]) == [
        f"{lacking}: no node has a label role"
    ]
    here = node({"role": "verifier"}, CPU=8)
    assert "in use by others" in explain_shortage(asked, "PACK", [here])[0]


@pytest.mark.parametrize("selector", ["in(drafter,head)", "head", "!verifier", "!in(a,verifier)"])
def test_selectors_are_ray_s(selector):
    asked = bundles(verifier={"node": {"labels": {"role": selector}}})
    assert find_shortages(asked, "PACK", [node({"role": "head"}, CPU=8)]) == []
    [reason] = find_shortages(asked, "PACK", [node({"role": "verifier"}, CPU=8)])
    assert "there is none: nodes have role verifier" in reason


def test_an_excluding_selector_takes_a_node_without_the_label():
    asked = bundles(verifier={"node": {"labels": {"role": "!in(drafter,head)"}}})
    assert find_shortages(asked, "PACK", [node(CPU=8)]) == []


def test_totals_are_compared_when_every_bundle_would_fit_alone():
    reasons = explain_shortage(bundles(), "PACK", [node(CPU=2)])
    assert reasons == ["all bundles together need 4 CPU, the cluster has 2"]
    assert find_shortages(bundles(), "STRICT_PACK", [node(CPU=8)], num_pipelines=2) == []
    [reason] = find_shortages(bundles(), "STRICT_PACK", [node(CPU=11)], num_pipelines=3)
    assert reason == "all bundles together need 12 CPU, the cluster has 11"


def test_strict_strategies_say_what_they_lack():
    reasons = explain_shortage(bundles(), "STRICT_SPREAD", [node(CPU=8), node(CPU=8)])
    assert reasons == ["STRICT_SPREAD needs a node for each of 3 bundles, the cluster has 2 nodes"]
    reasons = explain_shortage(bundles(), "STRICT_PACK", [node(CPU=2), node(CPU=2)])
    assert reasons == ["everything (STRICT_PACK) needs 4 CPU on one node, the most on any is 2 CPU"]


def test_an_empty_cluster_has_nothing():
    assert explain_shortage(bundles(), "PACK", []) == ["the cluster has no nodes"]
