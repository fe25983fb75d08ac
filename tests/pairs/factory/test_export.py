"""A drafter that shares its target's embeddings, as a model directory."""

import json
import shutil
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.models.loading.load import load_model
from diffuspec.pairs.factory.export import load_drafter, save_drafter
from diffuspec.pairs.factory.start import keep_layers
from tests.pairs.factory.conftest import assert_drafts
from tests.support.checkpoints import MASK_TOKEN_ID
from tests.support.models import fixed_table

SETTINGS = DiffusionSettings(MASK_TOKEN_ID, "block_causal")


@pytest.fixture(scope="module")
def drafter(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(target, folder / "target")
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    save_drafter(keep_layers(model, [1]), folder / "target", SETTINGS, folder / "drafter")
    return folder / "drafter"


def test_embeddings_are_the_targets(drafter: Path) -> None:
    loaded = load_model(drafter, device="cpu", dtype="bfloat16", max_len=32).runner.model
    target = AutoModelForCausalLM.from_pretrained(drafter.parent / "target", dtype=torch.bfloat16)
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        weight = attrgetter(name)  # no parameter where the CPU has a layer of its own for it
        assert torch.equal(weight(loaded), weight(target))
    mine, its = loaded.model.layers[0].mlp.down_proj, target.model.layers[1].mlp.down_proj
    assert torch.equal(mine.weight, its.weight)


def test_it_drafts_for_its_target(drafter: Path) -> None:
    assert_drafts(drafter.parent / "target", {"path": drafter, "device": "cpu"})


def test_matrices_stored_as_int8_are_the_same_up_to_rounding(drafter: Path) -> None:
    target = drafter.parent / "target"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    small = drafter.parent / "small"
    save_drafter(keep_layers(model, [1]), target, SETTINGS, small, "int8")
    stored = load_file(small / "model.safetensors")
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    loaded, settings = load_drafter(small)
    assert settings == SETTINGS
    mine, its = loaded.model.layers[0].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight
    assert (mine - its).abs().max() <= its.abs().max() / 127
    del stored["model.layers.0.mlp.up_proj.weight_scale"]
    save_file(stored, small / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"up_proj.weight is stored as int8 without its scale"):
        load_drafter(small)


def test_a_target_that_is_gone_is_named(drafter: Path, tmp_path: Path) -> None:
    moved = tmp_path / "drafter"
    shutil.copytree(drafter, moved)
    with pytest.raises(ModelLoadError, match=r"shares the embeddings of .*/target .* not exist"):
        load_model(moved, device="cpu", max_len=32)


def test_weights_that_no_file_has_are_named(drafter: Path, tmp_path: Path) -> None:
    shutil.copytree(drafter, tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    config["embeddings_from"] = "."
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"has no lm_head.weight, which"):
        load_model(tmp_path / "drafter", device="cpu", max_len=32)


def test_a_drafter_drafts_the_tokens_of_its_head_alone(drafter: Path) -> None:
    target = drafter.parent / "target"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    some = torch.arange(3, 200, 7)
    out = drafter.parent / "frequent"
    save_drafter(keep_layers(model, [1]), target, SETTINGS, out, head_token_ids=some)
    logits = [first_logits(path) for path in (drafter, out)]
    assert torch.equal(logits[0][:, some], logits[1][:, some])
    others = torch.ones(logits[1].shape[1], dtype=torch.bool).index_fill_(0, some, False)
    assert bool(torch.isneginf(logits[1][:, others]).all())
    assert_drafts(target, {"path": out, "device": "cpu"})


@pytest.mark.parametrize("token_ids", [[3, 2], [5, 100_000], [-1, 4], []])
def test_head_token_ids_that_are_none_are_refused(drafter: Path, token_ids: list[int]) -> None:
    target = drafter.parent / "target"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids, out = torch.tensor(token_ids, dtype=torch.long), drafter.parent / "wrong"
    save_drafter(keep_layers(model, [1]), target, SETTINGS, out, head_token_ids=ids)
    with pytest.raises(ModelLoadError, match="head_token_ids must be ascending token ids below"):
        load_model(out, device="cpu", max_len=32)


def first_logits(path: Path) -> torch.Tensor:
    """Return the logits of some rows, [3, V]."""
    runner = load_model(path, device="cpu", dtype="float32", max_len=32).runner
    rows = np.arange(3)
    with torch.inference_mode():
        return runner.forward([Segment(fixed_table(0), 0, rows + 97, rows, "causal", rows)])
