"""A DFlash drafter is trained to do what it does when it drafts."""

import json
from pathlib import Path

import numpy as np
import torch

from diffuspec.algorithm.lattice import Pruning
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.dflash import DFlashSettings
from diffuspec.models.heads.dflash_runner import DFlashRunner
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.target_layers import layers_of
from diffuspec.pairs.factory.blocks import place_blocks
from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.heads.dflash import DFlashLearner, settings_for
from diffuspec.pairs.factory.heads.learner import Rows
from diffuspec.pairs.factory.start import load_target

SIZE, MASK = 5, 259


@torch.no_grad()
def test_a_block_is_trained_as_it_is_drafted(target: Path) -> None:
    model = load_target(target).eval()
    token_ids = torch.randint(0, 256, (2, 14), generator=torch.Generator().manual_seed(0))
    settings = settings_for(model.config, 2, SIZE, MASK)
    layers = layers_of(model)
    learner = DFlashLearner(model, layers, settings, (0, 1), token_ids)
    output = model.base_model(input_ids=token_ids, output_hidden_states=True)
    features = torch.cat([output.hidden_states[n + 1] for n in learner.hidden_layers], -1)
    everywhere = torch.ones_like(token_ids, dtype=torch.bool)
    batch, starts = Batch(token_ids, everywhere, everywhere), torch.tensor([[9, 1], [4, 4]])
    rows = Rows(batch, output.last_hidden_state, features)
    trained = learner.states(rows, place_blocks(batch, starts, SIZE))
    trained = layers.head(trained).log_softmax(-1).reshape(2, 2, SIZE, -1)

    info = TargetInfo(264, 64, 2, ())
    drafter = DFlashRunner(learner.module.eval(), layers, info, Pruning(1.0, 20, ()))
    for row, block in np.ndindex(2, 2):
        start = int(starts[row, block])
        prefix = token_ids[row, : start + 1].numpy().astype(np.int32)
        request = DraftRequest("a", prefix, SIZE, "path", 9, 0.5, SamplingParams())
        [found] = drafter.lattices([request], [Features(0, (features[row, :start],))])
        wanted = trained[row, block, 1:].clone()
        wanted[:, MASK] = -torch.inf
        ids = torch.from_numpy(found.token_ids).long()
        expected = wanted.log_softmax(-1).gather(1, ids).numpy()
        assert np.allclose(found.logprobs, expected, atol=1e-4)


def test_its_configuration_is_that_of_vllms_speculators(target: Path) -> None:
    """What vLLM 0.32 reads (transformers_utils/configs/speculators), and what we read back."""
    model = load_target(target).eval()
    settings = settings_for(model.config, 2, SIZE, MASK)
    layers = layers_of(model)
    learner = DFlashLearner(model, layers, settings, (0, 1), torch.zeros(1, 4, dtype=torch.long))
    config = json.loads(json.dumps(learner.config()))
    assert config["speculators_model_type"] == "dflash"
    proposals = config["speculators_config"]
    assert proposals["proposal_methods"][0]["speculative_tokens"] == SIZE - 1
    assert proposals["verifier"]["name_or_path"] == str(target.resolve())
    assert config["aux_hidden_state_layer_ids"] == [n + 1 for n in settings.target_layer_ids]
    assert config["draft_vocab_size"] == config["transformer_layer_config"]["vocab_size"] == 264
    assert config["transformer_layer_config"]["model_type"] == "qwen3"
    read = DFlashSettings.read(HeadCheckpoint(target, config, {}), layers)
    assert read.target_layer_ids == settings.target_layer_ids
    assert read.causal_layers == (False, False)
    assert (read.block_size, read.mask_token_id) == (SIZE, MASK)
    read.model.vocab_size = settings.model.vocab_size  # it has neither embeddings nor a head
    assert read.model.to_diff_dict() == settings.model.to_diff_dict()
