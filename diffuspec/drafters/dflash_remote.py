"""DFlash in its own process, for example on another GPU: hidden states come with the requests.

With each draft it says which states it lacks. The coordinator gets these from the verifier, and
sends them with the next draft request: those of a prompt during its prefill, then a few in each
step. States lost with this process or the verifier's are requested again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import DFlashRemoteConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.dflash import load_lattices
from diffuspec.drafters.kind import DrafterKind, Target

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import FedDrafter


def _load(config: DFlashRemoteConfig, target: Target, path_scorer: PathScorer | None) -> FedDrafter:
    from diffuspec.drafters.head_drafter import FedDrafter  # these import torch
    from diffuspec.models.heads.target_layers import layers_at
    from diffuspec.models.loading.backend import resolve_device, resolve_dtype

    assert path_scorer is not None, "the registry says that it is needed"
    if target.path is None:
        raise ModelLoadError(f"{config.path} needs the directory of its target, for the embeddings")
    device = resolve_device(config.path, config.device)
    layers = layers_at(target.path, device, resolve_dtype(config.dtype, device))
    lattices = load_lattices(config, layers, target.info)
    return FedDrafter(lattices, path_scorer, target.info)


KIND = DrafterKind(
    DFlashRemoteConfig,
    _load,
    needs_path_scorer=True,
    model_module="diffuspec.models.heads.dflash_runner",
    takes_states=True,
)
