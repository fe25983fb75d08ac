"""Any value that crosses the wire."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from diffuspec.core.interfaces import RequestStatus, RoleStatus, ServiceStatus, TargetInfo
from diffuspec.core.params import (
    MAX_DRAFT_TOKENS,
    MAX_LOGPROBS,
    MAX_OUTCOMES,
    MAX_TREE_NODES,
    SamplingParams,
    SpeculationParams,
    StructuredOutput,
)
from diffuspec.core.types import (
    MAX_ALTERNATIVES,
    Draft,
    DraftRequest,
    DraftTree,
    FinishReason,
    Lattice,
    RequestOutput,
    StepStats,
    TokenLogprobs,
    Verdict,
    VerifiedDraft,
    VerifyRequest,
)

token_ids = st.integers(0, 2**31 - 1)
counts = st.integers(0, 2**32 - 1)
seconds = st.floats(0, 1e6)
logprobs = st.floats(max_value=0, allow_nan=False)  # -inf too
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abcXYZ019._-", min_size=1, max_size=12)


def tuples(elements, max_size=8):
    return st.lists(elements, max_size=max_size).map(tuple)


forms = st.one_of(
    st.builds(StructuredOutput, json_object=st.just(True)),
    st.builds(StructuredOutput, json_schema=texts.filter(len)),
    st.builds(StructuredOutput, regex=texts.filter(len)),
    st.builds(StructuredOutput, choice=tuples(texts.filter(len), 4).filter(len)),
    st.builds(StructuredOutput, grammar=texts.filter(len)),
)

samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 2**31 - 1),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    presence_penalty=st.floats(-10, 10),
    frequency_penalty=st.floats(-10, 10),
    max_tokens=st.integers(1, 2**63),
    stop=tuples(texts.filter(len), 4),
    stop_token_ids=tuples(token_ids, 4),
    structured_output=st.none() | forms,
    logprobs=st.none() | st.integers(0, MAX_LOGPROBS),
    min_p=st.floats(0, 1),
    min_tokens=st.integers(0, 1),
    logit_bias=st.dictionaries(token_ids, st.floats(-100, 100), max_size=4),
    allowed_token_ids=st.none() | tuples(token_ids, 4).filter(len),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    bad_words=tuples(texts.filter(len), 4),
    bad_words_token_ids=tuples(tuples(token_ids).filter(len), 4),
)

seeded_samplings = samplings.map(SamplingParams.with_seed)

speculations = st.builds(
    SpeculationParams,
    policy=st.sampled_from(["paper", "cost_aware", "fixed", "off"]),
    num_draft_tokens=st.integers(1, MAX_DRAFT_TOKENS),
    tree_shape=st.sampled_from(["path", "beams", "best_first"]),
    max_nodes=st.integers(1, MAX_TREE_NODES),
    drafter_weight=st.floats(0, 1) | st.just("adaptive"),
    num_outcomes=st.integers(0, MAX_OUTCOMES) | st.just("auto"),
    report_drafts=st.booleans(),
    prediction=tuples(token_ids, 12),
)


@st.composite
def trees(draw):
    tokens = draw(tuples(token_ids, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(len(tokens)))
    return DraftTree(tokens, parents)


pairs = st.tuples(token_ids, logprobs)


@st.composite
def drafts(draw):
    tree = draw(trees())
    some = st.lists(tuples(pairs, MAX_ALTERNATIVES), min_size=1, max_size=3)
    alternatives = st.just(())
    if draw(st.booleans()):
        lists = draw(some)
        entries = st.lists(
            st.sampled_from(lists), min_size=1 + tree.num_nodes, max_size=1 + tree.num_nodes
        )
        alternatives = entries.map(tuple)
    return Draft(
        tree,
        confidences=tuple(draw(logprobs) for _ in tree.token_ids),
        num_tokens_before_eos=draw(st.integers(-(2**31), 2**31 - 1)),
        drafter_choices=draw(tuples(token_ids)),
        proxy_choices=draw(tuples(token_ids)),
        draft_seconds=draw(seconds),
        search_seconds=draw(seconds),
        alternatives=draw(alternatives),
        transport_seconds=draw(seconds),
        num_refreshed=draw(st.integers(0, 2**32 - 1)),
    )


@st.composite
def lattices(draw):
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 5)))
    ids = st.integers(-1, 2**31 - 1)
    floats = st.floats(width=32, allow_nan=False)
    return Lattice(
        draw(arrays.arrays(np.int32, shape, elements=ids)),
        draw(arrays.arrays(np.float32, shape, elements=floats)),
        draw(arrays.arrays(np.int32, shape[0], elements=st.integers(1, shape[1]))),
        draw(st.integers(-(2**31), 2**31 - 1)),
        draw(st.integers(0, 2**32 - 1)),
    )


token_logprobs = st.builds(
    TokenLogprobs, logprobs, tuples(pairs, 4), st.none() | st.integers(1, 2**32 - 1)
)


@st.composite
def verdicts(draw):
    tokens = draw(st.lists(token_ids, min_size=1, max_size=6).map(tuple))
    known = draw(st.none() | st.tuples(*[token_logprobs] * len(tokens)))
    nodes = tuple(draw(counts) for _ in tokens[1:])
    times = draw(seconds), draw(seconds)
    return Verdict(tokens, nodes, known, *times, None, draw(counts), draw(counts))


prefixes = st.lists(token_ids, min_size=1, max_size=12).map(
    lambda tokens: np.array(tokens, np.int32)
)

draft_requests = st.builds(
    DraftRequest,
    request_id=st.sampled_from("abc"),
    prefix=prefixes,
    num_draft_tokens=st.integers(1, MAX_DRAFT_TOKENS),
    tree_shape=st.sampled_from(["path", "beams", "best_first"]),
    max_nodes=st.integers(1, MAX_TREE_NODES),
    drafter_weight=st.floats(0, 1),
    sampling=seeded_samplings,
    num_alternatives=st.integers(0, MAX_ALTERNATIVES),
)


@st.composite
def verify_requests(draw):
    prefix = draw(prefixes)
    num_prompt_tokens = draw(st.integers(1, len(prefix)))
    name, sampling = draw(st.sampled_from("abc")), draw(seeded_samplings)
    limit = draw(st.none() | st.integers(1, 2**32 - 1))
    return VerifyRequest(
        name, prefix, num_prompt_tokens, draw(trees()), sampling, max_read_tokens=limit
    )


infos = st.builds(
    TargetInfo,
    counts,
    counts,
    counts,
    eos_token_ids=tuples(token_ids),
    max_tree_nodes=counts,
    num_pages=st.none() | counts,
    row_multiple=st.integers(1, 100),
)

step_stats = st.builds(
    StepStats,
    **{
        name: {"int": counts, "float": seconds}[kind]
        for name, kind in StepStats.__annotations__.items()
        if kind in ("int", "float")
    },
    fallback=st.none() | texts,
    pre_draft=st.sampled_from([None, "hit", "miss"]),
)

outputs = st.builds(
    RequestOutput,
    token_ids=tuples(token_ids),
    num_accepted_tokens=counts,
    pieces=tuples(texts),
    text=texts,
    logprobs=st.none() | st.lists(token_logprobs, min_size=1, max_size=3).map(tuple),
    finish_reason=st.sampled_from([None, *FinishReason]),
    step=step_stats,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop_reason=st.none() | texts | token_ids,
    draft=st.none() | st.builds(VerifiedDraft, trees(), tuples(logprobs), tuples(counts)),
)

statuses = st.builds(
    ServiceStatus,
    roles=tuples(st.builds(RoleStatus, texts, texts, st.booleans(), texts), 3),
    degraded_reasons=tuples(texts, 3),
    num_running=counts,
    num_waiting=counts,
    requests=tuples(st.builds(RequestStatus, names, texts, seconds, texts, counts, counts), 3),
    num_unlisted_requests=counts,
)

prompts = (
    texts
    | st.lists(token_ids, max_size=8)
    | st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), min_size=1, max_size=3)
)
