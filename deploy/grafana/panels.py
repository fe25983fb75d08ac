"""The content of the dashboard: rows of panels, and the queries of each."""

from __future__ import annotations

from dataclasses import dataclass

_OF = 'job="$job",pipeline=~"$pipeline"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: its queries by legend, and its description."""

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"


def _rate(series: str, by: str = "", of: str = "") -> str:
    labels = _OF + (f",{of}" if of else "")
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate(diffuspec_{series}{{{labels}}}[$__rate_interval]))"


def _now(series: str) -> str:
    return f"sum(diffuspec_{series}{{{_OF}}})"


def _mean(histogram: str, by: str = "", of: str = "") -> str:
    return f"{_rate(f'{histogram}_sum', by, of)} / {_rate(f'{histogram}_count', by, of)}"


def _quantile(share: float, histogram: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', 'le')})"


def _quantiles(histogram: str) -> dict[str, str]:
    return {f"p{round(100 * share)}": _quantile(share, histogram) for share in (0.5, 0.95, 0.99)}


def _idle(role: str) -> str:
    busy = _rate("role_busy_seconds_total", of=f'role="{role}"')
    return f"1 - {busy} / {_rate('active_seconds_total')}"


_ACCEPTED_AT = _rate("spec_decode_num_accepted_tokens_per_pos_total", "position")
_DRAFTED_AT = _rate("spec_decode_num_drafts_per_pos_total", "position")
_HITS = _rate("pre_drafts_total", of='result="hit"')
_STEPS = _rate("step_seconds_count", of='stage="step"')

ROWS: dict[str, list[Panel]] = {
    "Load": [
        Panel(
            "Requests",
            "Requests wait with the running ones at their limit: add pipelines, or limit tokens.",
            {
                "running": _now("num_requests_running"),
                "running at most": _now("max_requests_running"),
                "waiting": _now("num_requests_waiting"),
                "waiting at most": _now("max_requests_waiting"),
            },
        ),
        Panel(
            "Tokens per second",
            "Throughput. If it falls, look at the acceptance length first, then at the hardware.",
            {"committed": _rate("generation_tokens_total"), "prompt": _rate("prompt_tokens_total")},
        ),
        Panel(
            "Ends of requests",
            "Refused: the queue is full, or the request is wrong. Failed: see the log. Decision "
            "failed: the scheduler decided plainly; no request ended.",
            {
                "finished: {{finished_reason}}": _rate("request_success_total", "finished_reason"),
                "failed: {{error}}": _rate("request_failed_total", "error"),
                "refused: {{error}}": _rate("request_refused_total", "error"),
                "cancelled": _rate("request_cancelled_total"),
                "decision failed: {{what}}": _rate("decision_failures_total", "what"),
            },
            "reqps",
        ),
        Panel(
            "Target's cache",
            "In use: share of the pages that running requests hold. Found: share of prompt tokens "
            "that were in the cache. Read again: tokens for each prompt token whose pages had been "
            "lost; if it is above a tenth, give the cache more memory, or lower max_sequences.",
            {
                "in use": f"avg(diffuspec_kv_cache_usage_perc{{{_OF}}})",
                "found": f"{_rate('prefix_cache_hits_total')} / "
                f"{_rate('prefix_cache_queries_total')}",
                "read again": f"{_rate('reread_tokens_total')} / {_rate('prompt_tokens_total')}",
            },
            "percentunit",
        ),
        Panel(
            "Pages of the cache",
            "Of 64 tokens each. Shared: those that several requests hold, for the same beginning.",
            {
                "in use": _now("kv_cache_pages_used"),
                "shared": _now("kv_cache_pages_shared"),
                "all": _now("kv_cache_pages"),
            },
        ),
        Panel(
            "Preemptions",
            "Requests that lost their pages to older ones, and are read again later. Answers are "
            "the same; if there are many, give the cache more memory.",
            {"preemptions": _rate("num_preemptions_total")},
            "ops",
        ),
        Panel(
            "Prompt and answer",
            "Mean tokens of finished requests. Other sizes explain other latencies.",
            {
                "prompt": _mean("request_prompt_tokens"),
                "answer": _mean("request_generation_tokens"),
            },
        ),
        Panel(
            "Drafters",
            "If fewer are available than expected, answers are slower, but still right.",
            {
                "available": _now("num_drafters_available"),
                "expected": _now("num_drafters_expected"),
            },
        ),
    ],
    "Latency": [
        Panel(
            "Time to first token",
            "Queue time and prefill together.",
            _quantiles("time_to_first_token_seconds"),
            "s",
        ),
        Panel(
            "Time per token",
            "After the first step; tokens of one step share its time.",
            _quantiles("inter_token_latency_seconds"),
            "s",
        ),
        Panel(
            "Whole requests",
            "Submission to the last token.",
            _quantiles("e2e_request_latency_seconds"),
            "s",
        ),
        Panel(
            "Parts of a request",
            "Means. If the queue grows, add pipelines; if prefill grows, prompts have become "
            "longer, or the batch is too full.",
            {
                part: _mean(f"request_{part}_time_seconds")
                for part in ("queue", "prefill", "decode", "inference")
            },
            "s",
        ),
        Panel(
            "Parts of a step",
            "Means. Much transport beside verify: the network is slow. Draft above verify: try "
            "shorter drafts, a smaller drafter, or overlap.",
            {
                stage: _mean("step_seconds", of=f'stage="{stage}"')
                for stage in ("step", "verify", "draft", "search", "transport")
            },
            "s",
        ),
    ],
    "Speculation": [
        Panel(
            "Acceptance length",
            "Committed tokens per step; plain decoding has 1. The speed-up follows it.",
            {"tokens per step": f"{_rate('generation_tokens_total')} / {_STEPS}"},
        ),
        Panel(
            "Acceptance by position",
            "Share of drafted tokens accepted at each position. If it falls sharply, drafts are "
            "too long.",
            {"{{position}}": f"{_ACCEPTED_AT} / {_DRAFTED_AT}"},
            "percentunit",
        ),
        Panel(
            "Draft tokens",
            "If much is verified and little accepted, try shorter drafts or fewer branches.",
            {
                "drafts": _rate("spec_decode_num_drafts_total"),
                "verified": _rate("spec_decode_num_draft_tokens_total"),
                "accepted": _rate("spec_decode_num_accepted_tokens_total"),
                "pre-drafted in vain": _rate("wasted_draft_tokens_total"),
            },
        ),
        Panel(
            "Pre-draft hits",
            "Share of verdicts whose next draft was ready. If it is low, pre-draft for more "
            "outcomes, or for none.",
            {"hits": f"{_HITS} / {_rate('pre_drafts_total')}"},
            "percentunit",
        ),
        Panel(
            "Idle while requests run",
            "An idle verifier waits for drafts; an idle drafter could pre-draft more.",
            {"verifier": _idle("verifier"), "drafter": _idle("drafter")},
            "percentunit",
        ),
        Panel(
            "Steps without a draft",
            "Steps for which drafting failed, by reason. Should be 0.",
            {"{{reason}}": _rate("fallback_total", "reason")},
        ),
        Panel(
            "Audits",
            "Answers decoded again without drafts. Any difference is a fault.",
            {"{{result}}": _rate("audits_total", "result")},
        ),
    ],
    "HTTP": [
        Panel(
            "Requests by route and status",
            "499: the client disconnected before the end.",
            {"{{route}} {{status}}": _rate("http_requests_total", "route, status")},
            "reqps",
        ),
        Panel(
            "Duration, 95th percentile",
            "From the head of a request to the end of its response, streams included.",
            {
                "{{route}}": "histogram_quantile(0.95, "
                f"{_rate('http_request_duration_seconds_bucket', 'le, route')})",
            },
            "s",
        ),
        Panel(
            "In progress",
            "Open requests of all routes.",
            {"requests": _now("http_requests_open")},
        ),
        Panel(
            "Errors",
            "By code. invalid_api_key and rate_limit_exceeded concern API keys.",
            {"{{code}}": _rate("http_errors_total", "code")},
        ),
        Panel(
            "Request bodies",
            "Mean bytes read.",
            {"{{route}}": _mean("http_request_body_bytes", "route")},
            "bytes",
        ),
    ],
}
