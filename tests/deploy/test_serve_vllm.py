"""The file of Ray Serve LLM names what there is: a proposer, and settings that it takes."""

import importlib
from pathlib import Path

import yaml

from diffuspec_client import Settings

ROOT = Path(__file__).resolve().parents[2]


def test_the_engine_of_the_file_drafts_by_the_proposer_from_the_pool_s_address():
    found = yaml.safe_load((ROOT / "deploy" / "serve_vllm.yaml").read_text())
    [application] = found["applications"]
    [engine] = [one["engine_kwargs"] for one in application["args"]["llm_configs"]]
    module, _, name = engine["speculative_config"]["model"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name).propose)
    settings = Settings.read(engine["additional_config"]["diffuspec"], {})
    assert settings.server == "127.0.0.1:9500"  # the default of deploy.draft_pool
    assert found["http_options"]["host"] == "127.0.0.1"
