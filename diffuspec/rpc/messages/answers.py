"""Prompts and answers as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import RequestStatus, RoleStatus, ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.token_ids import as_token_ids
from diffuspec.core.types import (
    FinishReason,
    Prompt,
    RequestOutput,
    StepStats,
    VerifiedDraft,
)
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.parameters import (
    enum_numbers,
    parameters_from_proto,
    parameters_to_proto,
)
from diffuspec.rpc.messages.values import (
    logprobs_from_proto,
    logprobs_to_proto,
    same_fields,
    sampling_from_proto,
    sampling_to_proto,
    tree_from_proto,
    tree_to_proto,
)
from diffuspec.telemetry import context
from diffuspec.v1 import coordinator_pb2

# Numbers of words in messages; None is UNSPECIFIED.
_FINISH_REASONS: dict[Any, Any] = {None: 0} | enum_numbers(coordinator_pb2.FinishReason.DESCRIPTOR)
_FINISH_REASON_NAMES = {n: word and FinishReason(word) for word, n in _FINISH_REASONS.items()}
_PRE_DRAFTS: dict[Any, Any] = {None: 0} | enum_numbers(coordinator_pb2.PreDraftResult.DESCRIPTOR)
_PRE_DRAFT_NAMES = {number: word for word, number in _PRE_DRAFTS.items()}

_MAX_LISTED_REQUESTS = 1000

_STEP_FIELDS = tuple({field.name for field in fields(StepStats)} - {"fallback", "pre_draft"})


def put_prompt(request: coordinator_pb2.GenerateRequest, prompt: Prompt) -> None:
    """Fill in a prompt. Raises InvalidRequestError if it is not a prompt."""
    try:
        if isinstance(prompt, str):
            request.text = prompt
        elif len(prompt) and isinstance(prompt[0], Mapping):
            request.chat.messages.extend([_message_to_proto(message) for message in prompt])
        else:
            request.tokens.SetInParent()
            ids = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
            request.tokens.token_ids.extend(ids)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(
            f"a prompt must be text, chat messages with `role` and `content`, or token ids: {error}"
        ) from error


def generate_request(
    prompt: Prompt,
    sampling: SamplingParams,
    speculation: SpeculationParams | None,
    request_id: str | None,
    committed_token_ids: Sequence[int],
    num_losses: int,
) -> coordinator_pb2.GenerateRequest:
    """Return a message for a request of the task's key.

    Raises InvalidRequestError if no message can hold it.
    """
    request = coordinator_pb2.GenerateRequest(
        request_id=request_id or "", key_name=context.key_name.get(), num_losses=num_losses
    )
    put_prompt(request, prompt)
    try:
        request.committed_token_ids.extend(committed_token_ids)
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"committed_token_ids must be token ids: {error}") from error
    request.sampling.CopyFrom(sampling_to_proto(sampling))
    if speculation is not None:
        kind = coordinator_pb2.SpeculationParams
        request.speculation.CopyFrom(parameters_to_proto(speculation, kind))
    return request


def check_sizes(request: coordinator_pb2.GenerateRequest, limits: RpcLimits) -> None:
    """Raise InvalidRequestError for lists that are too long for any target, or a long name."""
    bounds = (
        ("letters in key_name", len(request.key_name), limits.max_key_name_length),
        ("prompt tokens", len(request.tokens.token_ids), limits.max_prompt_tokens),
        ("committed tokens", len(request.committed_token_ids), limits.max_prompt_tokens),
        ("chat messages", len(request.chat.messages), limits.max_chat_messages),
    )
    for name, count, limit in bounds:
        if count > limit:
            raise InvalidRequestError(f"a request must have at most {limit} {name}, got {count}")


def take_request(
    request: coordinator_pb2.GenerateRequest, speculation: SpeculationParams
) -> tuple[Prompt, SamplingParams, SpeculationParams | None, str | None, list[int], int]:
    """Return a message's request, as the arguments of `Frontend.stream`.

    `speculation` holds the defaults of the message's speculation. Raises InvalidRequestError.
    """
    chosen = None
    if request.HasField("speculation"):
        chosen = parameters_from_proto(request.speculation, speculation)
    sampling = sampling_from_proto(request.sampling)
    committed, request_id = list(request.committed_token_ids), request.request_id or None
    return take_prompt(request), sampling, chosen, request_id, committed, request.num_losses


def take_prompt(request: coordinator_pb2.GenerateRequest) -> Prompt:
    """Return a message's prompt. Raises InvalidRequestError if there is none."""
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return request.text
    if kind == "tokens":
        return as_token_ids(np.fromiter(request.tokens.token_ids, np.int64))
    if kind == "chat":
        return [{"role": one.role, "content": one.content} for one in request.chat.messages]
    raise InvalidRequestError("the prompt is missing: set text, tokens or chat")


def _message_to_proto(message: Any) -> coordinator_pb2.ChatMessage:
    return coordinator_pb2.ChatMessage(role=message["role"], content=message["content"])


def _known(names: Any, number: int, field: str) -> Any:
    if number not in names:
        raise InvalidRequestError(f"{field} must be one of {sorted(names)}, got {number}")
    return names[number]


def put_output(message: coordinator_pb2.GenerateResponse, output: RequestOutput) -> None:
    """Fill an empty message in place. A constructor would copy each part that is a message."""
    message.token_ids.extend(output.token_ids)
    message.num_accepted_tokens = output.num_accepted_tokens
    message.text = output.text
    message.pieces.extend(output.pieces)
    if output.logprobs:
        message.logprobs.extend([logprobs_to_proto(one) for one in output.logprobs])
    message.finish_reason = _FINISH_REASONS[output.finish_reason]
    _put_step(message.step, output.step)
    if output.seed is not None:
        message.seed = output.seed
    if output.draft is not None:
        message.draft.CopyFrom(_draft_to_proto(output.draft))
    if output.prompt_logprobs:
        message.prompt_logprobs.extend([logprobs_to_proto(one) for one in output.prompt_logprobs])
    reason = output.stop_reason
    if isinstance(reason, str):
        message.stop = reason
    elif reason is not None:
        message.stop_token_id = reason


def request_output_from_proto(message: coordinator_pb2.GenerateResponse) -> RequestOutput:
    """Return the output in a message. Raises InvalidRequestError."""
    stop_reason = message.WhichOneof("stop_reason")
    return RequestOutput(
        token_ids=tuple(message.token_ids),
        num_accepted_tokens=message.num_accepted_tokens,
        pieces=tuple(message.pieces),
        text=message.text,
        logprobs=tuple([logprobs_from_proto(one) for one in message.logprobs]) or None,
        finish_reason=_known(_FINISH_REASON_NAMES, message.finish_reason, "finish_reason"),
        step=step_from_proto(message.step),
        seed=message.seed if message.HasField("seed") else None,
        draft=_draft_from_proto(message.draft) if message.HasField("draft") else None,
        prompt_logprobs=tuple([logprobs_from_proto(one) for one in message.prompt_logprobs]),
        stop_reason=None if stop_reason is None else getattr(message, stop_reason),
    )


def _draft_to_proto(draft: VerifiedDraft) -> coordinator_pb2.VerifiedDraft:
    return coordinator_pb2.VerifiedDraft(
        tree=tree_to_proto(draft.tree),
        confidences=draft.confidences,
        accepted_nodes=draft.accepted_nodes,
    )


def _draft_from_proto(message: coordinator_pb2.VerifiedDraft) -> VerifiedDraft:
    return VerifiedDraft(
        tree_from_proto(message.tree), tuple(message.confidences), tuple(message.accepted_nodes)
    )


def _put_step(message: coordinator_pb2.StepStats, step: StepStats) -> None:
    for name in _STEP_FIELDS:
        setattr(message, name, getattr(step, name))
    if step.fallback is not None:
        message.fallback = step.fallback
    message.pre_draft = _PRE_DRAFTS[step.pre_draft]


def step_from_proto(message: coordinator_pb2.StepStats) -> StepStats:
    """Return the statistics in a message. Raises InvalidRequestError."""
    return StepStats(
        **{name: getattr(message, name) for name in _STEP_FIELDS},
        fallback=message.fallback if message.HasField("fallback") else None,
        pre_draft=_known(_PRE_DRAFT_NAMES, message.pre_draft, "pre_draft"),
    )


def status_to_proto(
    status: ServiceStatus, max_message_bytes: int = DEFAULT_LIMITS.max_message_bytes
) -> coordinator_pb2.GetStatusResponse:
    """Convert a status; requests are listed in at most half of the message, the rest counted."""
    roles = [coordinator_pb2.RoleStatus(**same_fields(RoleStatus, one)) for one in status.roles]
    listed = _listed(status.requests, max_message_bytes // 2)
    return coordinator_pb2.GetStatusResponse(
        roles=roles,
        degraded_reasons=status.degraded_reasons,
        num_running=status.num_running,
        num_waiting=status.num_waiting,
        requests=listed,
        num_unlisted_requests=status.num_unlisted_requests + len(status.requests) - len(listed),
    )


def _listed(
    requests: Sequence[RequestStatus], max_bytes: int
) -> list[coordinator_pb2.RequestStatus]:
    messages: list[coordinator_pb2.RequestStatus] = []
    num_bytes = 0
    for request in requests[:_MAX_LISTED_REQUESTS]:
        message = coordinator_pb2.RequestStatus(**same_fields(RequestStatus, request))
        num_bytes += message.ByteSize()
        if num_bytes > max_bytes:
            break
        messages.append(message)
    return messages


def status_from_proto(message: coordinator_pb2.GetStatusResponse) -> ServiceStatus:
    roles = [RoleStatus(**same_fields(RoleStatus, one)) for one in message.roles]
    requests = [RequestStatus(**same_fields(RequestStatus, one)) for one in message.requests]
    return ServiceStatus(
        tuple(roles),
        tuple(message.degraded_reasons),
        message.num_running,
        message.num_waiting,
        tuple(requests),
        message.num_unlisted_requests,
    )
