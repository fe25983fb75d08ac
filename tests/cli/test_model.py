import json
import re

import torch

from tests.cli.conftest import error_line, printed
from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.diffusion_families import save_family
from tests.support.gguf_files import write_gguf
from tests.support.models import edit_json
from tests.support.quantized_models import W8A8, save_quantized


def test_import_tells_what_it_made_and_refuses_to_write_over_it(diffuspec, tmp_path):
    file, out = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "model"
    result = diffuspec("model", "import", file, "--out", out)
    assert printed(result).startswith(f"{out}: LlamaForCausalLM, ") and result.stderr == ""
    assert "in bfloat16, 259 token ids, a chat template; 8 tokens as in" in result.stdout
    again = diffuspec("model", "import", file, "--out", out)
    assert error_line(again) == f"{out} exists already: name a new directory, or remove it"


def test_import_refuses_foreign_files_and_precisions_in_one_line(diffuspec, tmp_path):
    (tmp_path / "notes.txt").write_text("no model")
    foreign = diffuspec("model", "import", tmp_path / "notes.txt", "--out", tmp_path / "model")
    assert "notes.txt is not a GGUF file" in error_line(foreign)
    wrong = diffuspec("model", "import", "x.gguf", "--out", "model", "--dtype", "int4")
    assert "'int4' is not one of 'bfloat16', 'float16', 'float32'" in error_line(wrong)


def test_explain_tells_how_a_directory_is_served(diffuspec, tmp_path):
    chat_tokenizer(QWEN).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "max_new_tokens": 9}')
    said = printed(diffuspec("model", "explain", tmp_path))
    for line in (
        "answers end at    262 <|im_end|>",
        "content           one text",
        "variables         enable_thinking",
        "tool calls        hermes",
        "reasoning         qwen3",
        "sampling          temperature 0.6",
        "longest answer    9 tokens",
    ):
        assert line in said
    other = diffuspec("model", "explain", tmp_path, "--reasoning-parser", "jamba")
    assert error_line(other).startswith("reasoning_parser must be qwen3, deepseek_r1")


def test_explain_tells_how_a_diffusion_lm_drafts(diffuspec, tmp_path):
    path = save_family(tmp_path / "fast-dllm", "fast-dllm")
    said = printed(diffuspec("model", "explain", path))
    for line in (
        "family            Fast-dLLM v2, model type Fast_dLLM_Qwen, layers of qwen2",
        "attention         block_aligned: blocks at multiples of their size see themselves and",
        "block             8 tokens",
        "predicts          the token after a row's own",
        "mask              119 |<MASK>|",
        "token ids         120",
    ):
        assert line in said
    (path / "tokenizer.json").unlink()  # as Dream comes: the table knows its mask
    edit_json(path / "config.json", model_type="Dream")
    said = printed(diffuspec("model", "explain", path))
    assert "mask              151666\n" in said and "Tokens" not in said
    edit_json(path / "config.json", model_type="wedlm")
    refused = "refused           WeDLM moves known tokens before its masks"
    assert refused in printed(diffuspec("model", "explain", path))
    edit_json(path / "config.json", model_type="sdar", noise="uniform")
    refused = "refused           its weights are the autoregressive model of UNO"
    assert refused in printed(diffuspec("model", "explain", path))


def test_explain_tells_how_weights_are_stored_and_multiplied(diffuspec, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", kinds=["Q4_K", "Q6_K", "Q5_K"])
    said = printed(diffuspec("model", "explain", file))
    for line in (
        "stored            GGUF, 0.9 million: Q6_K 34.5 %, Q5_K 34.5 %, Q4_K",
        "in memory         0.8 MiB, quantised\n",
        "on this CPU       diffuspec's products for ",
        "on a GPU          diffuspec's products in Triton",
        "cache             ",
        " KiB a token\n",
    ):
        assert line in said
    assert re.search(r"on this CPU .* \(.+\), (the processor's highest|chosen by DIFF)", said)
    assert "here              float32 on cpu" in said or torch.cuda.is_available()
    model = tmp_path / "model"
    save_quantized(model, W8A8)
    said = printed(diffuspec("model", "explain", model))
    assert "stored            compressed-tensors, W8A8 by output\n" in said
    edit_json(model / "config.json", quantization_config={"quant_method": "mxfp4"})
    said = printed(diffuspec("model", "explain", model))
    assert "quant_method 'mxfp4' is not supported: use the model in bfloat16" in said


def test_explain_computes_the_room_in_a_cache_from_config_json_alone(diffuspec, tmp_path):
    config = {
        "model_type": "qwen2",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    explain = "model", "explain", tmp_path / "config.json", "--device-memory"
    said = printed(diffuspec(*explain, "1"))
    assert "parameters        0.15 G, in bfloat16\n" in said
    assert "cache             4.0 KiB a token\n" in said  # 2 x 8 layers x 2 heads x 64 x 2 bytes
    assert "161,536 tokens, 78 requests of 2,000, in 0.6 GiB: 90 % of 1.0 GiB" in said
    assert "none: the weights take 0.3 GiB of 0.3 GiB" in printed(diffuspec(*explain, "0.3"))


def test_explain_names_a_licence_that_restricts(diffuspec, tmp_path):
    path = save_family(tmp_path / "efficient-dlm", "efficient-dlm")
    said = printed(diffuspec("model", "explain", path))
    assert "family            Efficient-DLM, model type qwen3, layers of qwen3" in said
    assert "licence           CC-BY-NC 4.0" in said
    said = printed(diffuspec("model", "explain", save_family(tmp_path / "a2d-qwen2", "a2d-qwen2")))
    assert "block             as drafter.block_size says, for bd3lm; else none" in said
    assert "mask              119 <|mask|>" in said
