"""Draft heads for a random target, trained in seconds, load as their authors' checkpoints do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.dflash import DFlashModel
from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.hydra import HydraHeads
from diffuspec.models.heads.medusa import MedusaHeads
from diffuspec.models.heads.target_layers import layers_of
from diffuspec.pairs.factory.heads.training import HeadKind, HeadPlan, HeadTraining

HEADS: dict[HeadKind, type[MedusaHeads | HydraHeads | EagleHead | DFlashModel]] = {
    "medusa": MedusaHeads,
    "hydra": HydraHeads,
    "eagle": EagleHead,
    "dflash": DFlashModel,
}


def make_plan(kind: HeadKind, target: Path, out: Path, answers: Path, **more: Any) -> HeadPlan:
    return HeadPlan(
        kind,
        target,
        out,
        (answers,),
        tokens_per_batch=300,
        other_lr=0.01,
        matrix_lr=0.05,
        report_every=2,
        **more,
    )


@pytest.mark.parametrize("kind", HEADS)
def test_heads_learn_the_targets_answers_and_load_for_it(kind, target, answers, tmp_path):
    training = HeadTraining(make_plan(kind, target, tmp_path, answers, num_chunks=4))
    training.run()
    lines = (tmp_path / "training" / "curve.jsonl").read_text().splitlines()
    curve = [json.loads(line) for line in lines]
    assert curve[1]["loss"] < curve[0]["loss"] and len(curve[0]["right"]) == (
        11 if kind == "dflash" else 3
    )
    layers = layers_of(AutoModelForCausalLM.from_pretrained(target))
    heads = HEADS[kind].load(tmp_path, layers)
    assert not any(parameter.requires_grad for parameter in heads.parameters())


def test_matrices_stored_as_int8_are_read_the_same_up_to_rounding(target, answers, tmp_path):
    plan = make_plan("dflash", target, tmp_path, answers, storage="int8", layers=(1,))
    training = HeadTraining(plan)
    training.export()
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["fc.weight"].dtype == torch.int8
    assert stored["norm.weight"].dtype == torch.bfloat16
    read = HeadCheckpoint.read(tmp_path, ()).weights
    for name, parameter in training.heads.named_parameters():
        tolerance = float(parameter.detach().abs().max()) / 200
        assert torch.allclose(read[name].float(), parameter, atol=tolerance)
    del stored["fc.weight_scale"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"fc.weight is stored as int8 without its scales"):
        HeadCheckpoint.read(tmp_path, ())
