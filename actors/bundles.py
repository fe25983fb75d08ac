"""The placement groups that a pipeline needs on a cluster, and why a cluster cannot hold them.

A bundle is a set of resources on one node. Bundles of one group are granted, lost and granted again
together, so what can do without another role has a group of its own. Nothing here depends on Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from actors.placement_settings import NodeSettings, Strategy, round_share
from actors.settings import DrafterProcess, PipelineConfig

COORDINATOR, VERIFIER = "coordinator", "verifier"


@dataclass(frozen=True, slots=True)
class Bundle:
    """The resources on one node for a role, with labels that the node must have."""

    role: str
    resources: dict[str, float]
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Bundles that are placed together, by one of Ray's strategies."""

    name: str
    bundles: tuple[Bundle, ...]
    strategy: Strategy = "PACK"

    def with_labels(self, labels: dict[str, str]) -> Self:
        """Return the group with labels that each node must have, too."""
        bundles = (replace(bundle, labels=labels | bundle.labels) for bundle in self.bundles)
        return replace(self, bundles=tuple(bundles))


@dataclass(frozen=True, slots=True)
class Node:
    """A node's total resources, used or free, and its labels."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]


def make_groups(config: PipelineConfig) -> tuple[Group, ...]:
    """Return the groups of a pipeline: coordinator, verifier, each drafter with its scorer.

    STRICT_PACK makes a single group of them, STRICT_SPREAD one of all drafters. If all roles run
    together, there is only the coordinator's.
    """
    strategy, node = config.placement.strategy, config.placement.coordinator
    coordinator = _bundle(COORDINATOR, node.num_cpus, node.num_gpus, node.node)
    if config.placement.together:
        return (Group(COORDINATOR, (coordinator,)),)
    ranks = _rank_bundles(config)
    drafters = tuple(_drafter_bundle(config, drafter) for drafter in config.drafter_processes)
    if strategy == "STRICT_PACK":
        return (Group("everything (STRICT_PACK)", (coordinator, *ranks, *drafters), strategy),)
    spans_nodes = config.placement.verifier.spans_nodes
    needed = (
        Group(COORDINATOR, (coordinator,)),
        Group(VERIFIER, ranks, "PACK" if spans_nodes else "STRICT_PACK"),
    )
    if strategy == "STRICT_SPREAD" and drafters:
        return (*needed, Group("the drafters", drafters, strategy))
    return needed + tuple(Group(drafter.role, (drafter,)) for drafter in drafters)


def _rank_bundles(config: PipelineConfig) -> tuple[Bundle, ...]:
    """Return a bundle for each rank; custom resources are reserved once, with rank 0."""
    verifier = config.placement.verifier
    others = NodeSettings(labels=verifier.node.labels)
    return tuple(
        _bundle(VERIFIER, verifier.num_cpus, verifier.num_gpus, others if rank else verifier.node)
        for rank in range(verifier.tensor_parallel)
    )


def _drafter_bundle(config: PipelineConfig, process: DrafterProcess) -> Bundle:
    drafter, scorer = process.settings, config.placement.path_scorer
    num_cpus, num_gpus = drafter.num_cpus, drafter.num_gpus
    if process.needs_path_scorer:
        num_cpus, num_gpus = num_cpus + scorer.num_cpus, config.placement.shared_gpus(drafter)
    return _bundle(process.role, num_cpus, num_gpus, drafter.node)


def _bundle(role: str, num_cpus: float, num_gpus: float, node: NodeSettings) -> Bundle:
    asked = {"CPU": num_cpus, "GPU": num_gpus, **node.resources}
    resources = {key: round_share(value) for key, value in asked.items() if value}
    return Bundle(role, resources, dict(node.labels))


def explain_shortage(groups: Sequence[Group], nodes: Sequence[Node]) -> list[str]:
    """Return at least one reason why the groups do not fit the nodes now."""
    reasons = find_shortages(groups, nodes)
    return reasons or ["the nodes are large enough, but their resources are in use by others"]


def find_shortages(
    groups: Sequence[Group], nodes: Sequence[Node], num_pipelines: int = 1
) -> list[str]:
    """Return the reasons why pipelines of these groups do not fit the nodes even when idle.

    Returns an empty list if they fit. The check is not complete: it can miss a shortage.
    """
    if not nodes:
        return ["the cluster has no nodes"]
    bundles = [bundle for group in groups for bundle in group.bundles]
    asked = [bundle for group in groups for bundle in _wholes(group)]
    reasons = [reason for bundle in asked if (reason := _misfit(bundle, nodes)) is not None]
    reasons += _totals(bundles * num_pipelines, nodes)
    num_apart = sum(
        len(group.bundles) if group.strategy == "STRICT_SPREAD" else 1 for group in groups
    )
    if groups[-1].strategy == "STRICT_SPREAD" and len(nodes) < num_apart:
        reasons.append(f"STRICT_SPREAD needs {num_apart} nodes, the cluster has {len(nodes)}")
    return reasons


def _wholes(group: Group) -> list[Bundle]:
    """Return what a group needs, each on one node; first what its roles need alone."""
    if group.strategy != "STRICT_PACK":
        return [*group.bundles]
    is_one_role = len({bundle.role for bundle in group.bundles}) == 1
    labels = group.bundles[0].labels if is_one_role else {}
    together = Bundle(group.name, dict(_sum(group.bundles)), labels)
    return [together] if is_one_role else [*group.bundles, together]


def _misfit(bundle: Bundle, nodes: Sequence[Node]) -> str | None:
    """Return the reason why no node can hold a bundle; None if one can when it is idle."""
    labelled = [node for node in nodes if _carries(node, bundle.labels)]
    if not labelled:
        there = "; ".join(_describe_label(key, nodes) for key in bundle.labels)
        return f"{bundle.role} needs a node with labels {bundle.labels}, there is none: {there}"
    if any(_holds(node, bundle.resources) for node in labelled):
        return None
    wanted = _spell(bundle.resources)
    most = {key: max(node.resources.get(key, 0) for node in labelled) for key in bundle.resources}
    where = f" with labels {bundle.labels}" if bundle.labels else ""
    return f"{bundle.role} needs {wanted} on one node{where}, the most on any is {_spell(most)}"


def _totals(bundles: Sequence[Bundle], nodes: Sequence[Node]) -> list[str]:
    have: Counter[str] = Counter()
    for node in nodes:
        have.update(dict(node.resources))
    wanted = _sum(bundles)
    return [
        f"all bundles together need {wanted[key]:g} {key}, the cluster has {have[key]:g}"
        for key in wanted
        if wanted[key] > have[key]
    ]


def _sum(bundles: Sequence[Bundle]) -> Counter[str]:
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(bundle.resources)
    return total


def _carries(node: Node, labels: Mapping[str, str]) -> bool:
    return all(_selects(value, node.labels.get(key)) for key, value in labels.items())


def _describe_label(key: str, nodes: Sequence[Node]) -> str:
    values = sorted({node.labels[key] for node in nodes if key in node.labels})
    return f"nodes have {key} {', '.join(values)}" if values else f"no node has a label {key}"


def _selects(selector: str, label: str | None) -> bool:
    """Return whether one of Ray's label selectors (a, !a, in(a,b) or !in(a,b)) matches a label."""
    wanted = selector.removeprefix("!")
    if wanted.endswith(")"):
        is_wanted = label in wanted.removeprefix("in").strip("()").split(",")
    else:
        is_wanted = label == wanted
    return is_wanted != selector.startswith("!")


def _holds(node: Node, resources: Mapping[str, float]) -> bool:
    return all(node.resources.get(key, 0) >= value for key, value in resources.items())


def _spell(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {key}" for key, value in resources.items())
