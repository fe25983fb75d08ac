"""A speculator for vLLM's model runner V2, which schedules ahead of its results.

vLLM has no registry for speculators: this **wraps an internal function**, `init_speculator`, when
vLLM loads its plug-ins (entry point `vllm.general_plugins`). The wrapped function behaves as before
unless the speculative method is `ngram_gpu` and `additional_config` has a section `diffuspec`. The
internals of vLLM that are used are listed in HOOKS and checked first; if one is missing, vLLM is
left unchanged and a warning is logged.

`propose` looks drafts up in a table on the device, which a thread fills with the drafts of a
server; the host never waits. A request without a draft gets its last token repeated, as in vLLM's
own n-gram speculator, because token ids must be valid.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from diffuspec_client.client import DraftClient
from diffuspec_client.draft_table import MISS, DraftTable
from diffuspec_client.hooks import has_hook
from diffuspec_client.outcome_feeder import OutcomeFeeder, Report
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.vllm import vllm_version, vocabulary_of

logger = logging.getLogger(__name__)

_GPU = "vllm.v1.worker.gpu"
_RUNNER = f"{_GPU}.model_runner"
# Names in vLLM's modules, and the parameters or fields that each must have.
HOOKS: tuple[tuple[str, str, frozenset[str]], ...] = (
    (f"{_GPU}.spec_decode", "init_speculator", frozenset({"vllm_config", "device", "req_states"})),
    (
        f"{_GPU}.spec_decode.speculator",
        "BaseSpeculator.propose",
        frozenset({"input_batch", "num_sampled", "last_sampled", "dummy_run"}),
    ),
    (f"{_GPU}.spec_decode.speculator", "BaseSpeculator.init_cudagraph_manager", frozenset()),
    (f"{_GPU}.spec_decode.speculator", "BaseSpeculator.capture", frozenset()),
    (
        f"{_GPU}.input_batch",
        "InputBatch",
        frozenset({"req_ids", "num_reqs", "idx_mapping", "idx_mapping_np", "is_prefilling_np"}),
    ),
)
_STATES = ("req_id_to_index", "all_token_ids", "total_len")  # attributes of vLLM's request states
_OUR_METHODS = {"init_cudagraph_manager", "capture", "propose"}


def register() -> None:
    """Wrap vLLM's `init_speculator`. This is the entry point, and it never raises."""
    try:
        # the other hooks are checked when a speculator is requested
        missing = missing_hooks(HOOKS[:1])
        if missing:
            _warn(f"this vLLM lacks {', '.join(missing)}")
            return
        module = importlib.import_module(f"{_GPU}.spec_decode")
        if not hasattr(module.init_speculator, "__wrapped__"):
            module.init_speculator = wrapped(module.init_speculator)  # type: ignore[attr-defined]
        runner = sys.modules.get(_RUNNER)
        if runner is not None:  # the runner module has imported the function by name
            runner.init_speculator = module.init_speculator  # type: ignore[attr-defined]
    except Exception as error:
        _warn(repr(error))


def missing_hooks(
    hooks: Sequence[tuple[str, str, frozenset[str]]] = HOOKS,
    load: Callable[[str], Any] = importlib.import_module,
) -> list[str]:
    """Return the hooks that this version of vLLM lacks, or whose parameters or fields differ."""
    return [
        f"{module}.{name}"
        for module, name, wanted in hooks
        if not has_hook(module, name, wanted, load)
    ]


def wrapped(init_speculator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that tries our speculator first, and vLLM's otherwise."""

    @wraps(init_speculator)
    def init(
        vllm_config: Any, device: torch.device, req_states: Any, *more: Any, **named: Any
    ) -> Any:
        try:
            if _is_asked_for(vllm_config):
                reason = _reason_against(vllm_config, req_states)
                if not reason:
                    return _new_speculator(vllm_config, device, req_states)
                _warn(reason)
        except Exception as error:
            _warn(repr(error))
        return init_speculator(vllm_config, device, req_states, *more, **named)

    return init


def _is_asked_for(vllm_config: Any) -> bool:
    method = getattr(vllm_config.speculative_config, "method", None)
    return method == "ngram_gpu" and "diffuspec" in (vllm_config.additional_config or {})


def _reason_against(vllm_config: Any, req_states: Any) -> str:
    """Return why vLLM's own speculator is used; "" if ours can be."""
    absent = missing_hooks()
    if absent:
        return f"this vLLM lacks {', '.join(absent)}"
    missing = [name for name in _STATES if not hasattr(req_states, name)]
    if missing:
        return f"its request states lack {', '.join(missing)}"
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size > 1:
        # Each rank looks up for itself, and a table that arrives one step later on one rank gives
        # other drafts.
        return "ranks of tensor parallelism have to propose alike, and tables come at any time"
    return ""


def _new_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    base = importlib.import_module(f"{_GPU}.spec_decode.speculator").BaseSpeculator
    unknown: frozenset[str] = getattr(base, "__abstractmethods__", frozenset()) - _OUR_METHODS
    if unknown:
        raise TypeError(f"its speculators need {', '.join(sorted(unknown))}")
    return type("DiffuspecSpeculator", (TableSpeculator, base), {})(vllm_config, device, req_states)


class TableSpeculator:
    """A speculator with vLLM's interface, over a table of drafts."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        spec, model = vllm_config.speculative_config, vllm_config.model_config
        self.vllm_config = vllm_config
        self.device = device
        self.speculative_config = spec
        self.num_speculative_steps = int(spec.num_speculative_tokens)
        self._states = req_states
        num_rows = int(vllm_config.scheduler_config.max_num_seqs)
        shape = (num_rows, self.num_speculative_steps)
        self._drafts = torch.zeros(shape, dtype=torch.int64, device=device)
        self._offsets = torch.arange(self.num_speculative_steps + 1, device=device)
        self._table = DraftTable(num_rows, self.num_speculative_steps, device)
        self._known: set[str] = set()
        self._problems = Problems(logger)
        settings = Settings.read(vllm_config.additional_config["diffuspec"])
        connect = partial(
            DraftClient,
            settings,
            vocabulary=vocabulary_of(model),
            max_model_len=int(model.max_model_len),
            max_requests=num_rows,
            max_draft_tokens=self.num_speculative_steps,
            engine=f"vllm {vllm_version()} v2",
        )
        self._feeder = OutcomeFeeder(
            self._table, lambda take: connect(on_outcomes=take), int(model.max_model_len)
        )

    def init_cudagraph_manager(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no model, and so no graph."""

    def capture(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no graph to capture."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        *positional: Any,
        num_sampled: torch.Tensor | None = None,
        last_sampled: torch.Tensor | None = None,
        dummy_run: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Return the drafts of a batch, [num_reqs, num_speculative_steps], without waiting."""
        number = int(input_batch.num_reqs)
        drafts = self._drafts[:number]
        if dummy_run:
            return drafts
        try:
            # Positional: (attn_metadata, slot_mappings, two kinds of hidden states, num_sampled,
            # num_rejected, last_sampled); releases add and rename the later ones.
            sampled = positional[4] if num_sampled is None else num_sampled
            last = positional[6] if last_sampled is None else last_sampled
            found = self._look_up(input_batch, sampled)
            fill = last.view(-1)[input_batch.idx_mapping[:number]].unsqueeze(-1)
            drafts.copy_(torch.where(found == MISS, fill.to(torch.int64), found))
        except Exception:
            self._problems.show("no drafts in this step", logging.ERROR, has_trace=True)
            drafts.zero_()
        return drafts

    def _look_up(self, batch: Any, num_sampled: torch.Tensor) -> torch.Tensor:
        number = int(batch.num_reqs)
        rows = batch.idx_mapping[:number].to(torch.int64)
        token_ids = self._states.all_token_ids.gpu
        lengths = self._states.total_len.gpu[rows]
        found = self._table.lookup(rows, lengths, token_ids)
        self._report(batch, rows, lengths, num_sampled[:number], token_ids)
        return found

    def _report(
        self,
        batch: Any,
        rows: torch.Tensor,
        lengths: torch.Tensor,
        num_sampled: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> None:
        """Pass this step's tokens to the thread, as copies that the device completes later."""
        number = len(rows)
        names, places = [*batch.req_ids[:number]], batch.idx_mapping_np[:number].tolist()
        while self._feeder.lost:
            self._known.discard(self._feeder.lost.pop())
        ended = [one for one in self._known if one not in self._states.req_id_to_index]
        self._known.difference_update(ended)
        starts = (lengths - num_sampled).unsqueeze(-1)
        positions = (starts + self._offsets).clamp(0, token_ids.shape[1] - 1)
        new = _to_host(token_ids[rows.unsqueeze(-1), positions])
        whole = {}
        for place, name in enumerate(names):
            if name not in self._known and not batch.is_prefilling_np[place]:
                whole[name] = _to_host(token_ids[places[place]])
                self._known.add(name)
        host_lengths, host_sampled = _to_host(lengths), _to_host(num_sampled)
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._feeder.report(
            Report(
                request_ids=names,
                rows=places,
                lengths=host_lengths.numpy(),
                num_new=host_sampled.numpy(),
                new_tokens=new.numpy(),
                whole={name: tokens.numpy() for name, tokens in whole.items()},
                ended=ended,
                wait=event.synchronize if event is not None else lambda: None,
            )
        )


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Start a copy to the host; it is complete when the device reaches it."""
    if tensor.device.type == "cpu":
        return tensor.to(torch.int32, copy=True)
    host = torch.empty(tensor.shape, dtype=torch.int32, pin_memory=True)
    return host.copy_(tensor.to(torch.int32), non_blocking=True)


def _warn(reason: str) -> None:
    logger.warning("diffuspec: vLLM goes on without our drafts: %s", reason)
