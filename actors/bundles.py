"""The bundles that a pipeline needs on a cluster, and why a cluster cannot hold them.

A bundle is a set of resources on one node. Roles that must run on one node share a bundle: a
drafter and its path scorer, or all ranks of the verifier. Nothing here depends on Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.placement_settings import NodeSettings, Strategy, round_share
from actors.settings import DrafterProcess, PipelineConfig


@dataclass(frozen=True, slots=True)
class Bundle:
    """The resources on one node, with labels that the node must have."""

    name: str
    resources: dict[str, float]
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's total resources, used or free, and its labels."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]


def make_bundles(config: PipelineConfig) -> tuple[Bundle, ...]:
    """Return the bundles of a pipeline: coordinator, each drafter with its scorer, verifier.

    If all roles run together, there is only the coordinator's.
    """
    placement = config.placement
    coordinator, verifier = placement.coordinator, placement.verifier
    num_ranks = verifier.tensor_parallel
    first = _bundle("coordinator", coordinator.num_cpus, coordinator.num_gpus, coordinator.node)
    if placement.together:
        return (first,)
    return (
        first,
        *(_drafter_bundle(config, process) for process in config.drafter_processes),
        _bundle(
            "verifier", num_ranks * verifier.num_cpus, num_ranks * verifier.num_gpus, verifier.node
        ),
    )


def _drafter_bundle(config: PipelineConfig, process: DrafterProcess) -> Bundle:
    drafter, scorer = process.settings, config.placement.path_scorer
    num_cpus, num_gpus = drafter.num_cpus, drafter.num_gpus
    if process.needs_path_scorer:
        num_cpus, num_gpus = num_cpus + scorer.num_cpus, config.placement.shared_gpus(drafter)
    return _bundle(process.role, num_cpus, num_gpus, drafter.node)


def _bundle(name: str, num_cpus: float, num_gpus: float, node: NodeSettings) -> Bundle:
    asked = {"CPU": num_cpus, "GPU": num_gpus, **node.resources}
    resources = {key: round_share(value) for key, value in asked.items() if value}
    return Bundle(name, resources, dict(node.labels))


def explain_shortage(
    bundles: Sequence[Bundle], strategy: Strategy, nodes: Sequence[Node]
) -> list[str]:
    """Return at least one reason why the bundles do not fit the nodes now."""
    reasons = find_shortages(bundles, strategy, nodes)
    return reasons or ["the nodes are large enough, but their resources are in use by others"]


def find_shortages(
    bundles: Sequence[Bundle],
    strategy: Strategy,
    nodes: Sequence[Node],
    num_pipelines: int = 1,
) -> list[str]:
    """Return the reasons why pipelines of these bundles do not fit the nodes even when idle.

    Returns an empty list if they fit. The check is not complete: it can miss a shortage.
    """
    if not nodes:
        return ["the cluster has no nodes"]
    reasons = [reason for bundle in bundles if (reason := _misfit(bundle, nodes)) is not None]
    reasons += _totals([*bundles] * num_pipelines, nodes)
    if strategy == "STRICT_SPREAD" and len(nodes) < len(bundles):
        reasons.append(
            f"STRICT_SPREAD needs a node for each of {len(bundles)} bundles, "
            f"the cluster has {len(nodes)} nodes"
        )
    if strategy == "STRICT_PACK":
        together = Bundle("everything (STRICT_PACK)", dict(_sum(bundles)), {})
        reason = _misfit(together, nodes)
        reasons += [reason] if reason is not None else []
    return reasons


def _misfit(bundle: Bundle, nodes: Sequence[Node]) -> str | None:
    """Return the reason why no node can hold a bundle; None if one can when it is idle."""
    labelled = [node for node in nodes if _carries(node, bundle.labels)]
    if not labelled:
        there = "; ".join(_describe_label(key, nodes) for key in bundle.labels)
        return f"{bundle.name} needs a node with labels {bundle.labels}, there is none: {there}"
    if any(_holds(node, bundle.resources) for node in labelled):
        return None
    wanted = _spell(bundle.resources)
    most = {key: max(node.resources.get(key, 0) for node in labelled) for key in bundle.resources}
    where = f" with labels {bundle.labels}" if bundle.labels else ""
    return f"{bundle.name} needs {wanted} on one node{where}, the most on any is {_spell(most)}"


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
