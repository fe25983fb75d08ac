"""Bundles of a pipeline, and what is said when a cluster has no room for them."""

from typing import Any

import pytest

from actors.bundles import Group, Node, explain_shortage, find_shortages, make_groups
from actors.settings import parse_pipeline


def groups(**placement: Any) -> tuple[Group, ...]:
    return make_groups(parse_pipeline({"engine": {"preset": "tiny"}, "placement": placement}))


def node(labels: dict[str, str] | None = None, **resources: float) -> Node:
    return Node(resources, labels or {})


def test_what_can_do_without_the_others_has_a_group_of_its_own():
    coordinator, verifier, drafter = groups(
        coordinator={"num_cpus": 0.5},
        drafter={"num_gpus": 0.9, "node": {"resources": {"drafter_node": 1}}},
        path_scorer={"num_gpus": 0.1},
        verifier={
            "tensor_parallel": 2,
            "num_gpus": 1,
            "node": {"labels": {"role": "verifier"}, "resources": {"verifier_node": 1}},
        },
    )
    assert [bundle.resources for bundle in coordinator.bundles] == [{"CPU": 0.5}]
    assert [bundle.resources for bundle in drafter.bundles] == [
        {"CPU": 2, "GPU": 1, "drafter_node": 1}
    ]
    rank = {"CPU": 1, "GPU": 1}
    assert [bundle.resources for bundle in verifier.bundles] == [rank | {"verifier_node": 1}, rank]
    assert all(bundle.labels == {"role": "verifier"} for bundle in verifier.bundles)
    assert verifier.strategy == "STRICT_PACK"


def test_ranks_may_span_nodes_only_where_that_is_said():
    _, verifier, _ = groups(verifier={"tensor_parallel": 2, "spans_nodes": True})
    assert verifier.strategy == "PACK"
    assert find_shortages([verifier], [node(CPU=1), node(CPU=1)]) == []


@pytest.mark.parametrize(
    ("engine", "placement", "expected"),
    [
        ({}, {"drafter": {"count": 2}}, ["coordinator", "verifier", "drafter 0", "drafter 1"]),
        ({"drafter": None}, {}, ["coordinator", "verifier"]),
        ({}, {"strategy": "STRICT_PACK"}, ["everything (STRICT_PACK)"]),
        (
            {},
            {"strategy": "STRICT_SPREAD", "drafter": {"count": 2}},
            ["coordinator", "verifier", "the drafters"],
        ),
    ],
)
def test_groups_follow_from_drafters_and_strategy(engine, placement, expected):
    given = {"engine": {"preset": "tiny"} | engine, "placement": placement}
    assert [group.name for group in make_groups(parse_pipeline(given))] == expected


def test_a_drafter_that_needs_no_path_scorer_reserves_nothing_for_one():
    config = parse_pipeline({"engine": {"preset": "tiny", "drafter": {"kind": "sps", "path": "m"}}})
    [drafter] = make_groups(config)[-1].bundles
    assert drafter.resources == {"CPU": 1}


def test_ranks_that_no_node_can_hold_together_are_named():
    asked = groups(verifier={"tensor_parallel": 4, "num_gpus": 1})
    reasons = explain_shortage(asked, [node(CPU=8, GPU=2), node(CPU=8, GPU=2)])
    assert reasons == ["verifier needs 4 CPU, 4 GPU on one node, the most on any is 8 CPU, 2 GPU"]


def test_labels_that_no_node_has_are_named():
    asked = groups(verifier={"node": {"labels": {"role": "verifier"}}})
    lacking = "verifier needs a node with labels {'role': 'verifier'}, there is none"
    drafter, head = (node({"role": role}, CPU=8) for role in ("drafter", "head"))
    reasons = explain_shortage(asked, [head, drafter])
    assert reasons == [f"{lacking}: nodes have role drafter, head"]
    assert explain_shortage(asked, [node(CPU=8)]) == [f"{lacking}: no node has a label role"]
    here = node({"role": "verifier"}, CPU=8)
    assert "in use by others" in explain_shortage(asked, [here])[0]


@pytest.mark.parametrize("selector", ["in(drafter,head)", "head", "!verifier", "!in(a,verifier)"])
def test_selectors_are_ray_s(selector):
    asked = groups(verifier={"node": {"labels": {"role": selector}}})
    assert find_shortages(asked, [node({"role": "head"}, CPU=8)]) == []
    [reason] = find_shortages(asked, [node({"role": "verifier"}, CPU=8)])
    assert "there is none: nodes have role verifier" in reason


def test_an_excluding_selector_takes_a_node_without_the_label():
    asked = groups(verifier={"node": {"labels": {"role": "!in(drafter,head)"}}})
    assert find_shortages(asked, [node(CPU=8)]) == []


def test_totals_are_compared_when_every_bundle_would_fit_alone():
    reasons = explain_shortage(groups(), [node(CPU=2)])
    assert reasons == ["all bundles together need 4 CPU, the cluster has 2"]
    assert find_shortages(groups(strategy="STRICT_PACK"), [node(CPU=8)], num_pipelines=2) == []
    [reason] = find_shortages(groups(strategy="STRICT_PACK"), [node(CPU=11)], num_pipelines=3)
    assert reason == "all bundles together need 12 CPU, the cluster has 11"


def test_strict_strategies_say_what_they_lack():
    reasons = explain_shortage(groups(strategy="STRICT_SPREAD"), [node(CPU=8), node(CPU=8)])
    assert reasons == ["STRICT_SPREAD needs 3 nodes, the cluster has 2"]
    reasons = explain_shortage(groups(strategy="STRICT_PACK"), [node(CPU=2), node(CPU=2)])
    assert reasons == ["everything (STRICT_PACK) needs 4 CPU on one node, the most on any is 2 CPU"]


def test_an_empty_cluster_has_nothing():
    assert explain_shortage(groups(), []) == ["the cluster has no nodes"]
