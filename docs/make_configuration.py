"""Write docs/configuration.md from the schema of the configuration, or check that it is current.

    python docs/make_configuration.py [--check]

Keys, types, ranges, defaults and explanations come from the classes that read the files. The
examples are written here; tests/docs loads each of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `actors` is not an installed package

from actors.draft_pool import DraftPoolConfig  # noqa: E402
from actors.draft_scaling import DraftScaling  # noqa: E402
from actors.settings import PipelineConfig  # noqa: E402
from diffuspec.core.config import EngineConfig  # noqa: E402
from diffuspec.core.params import SamplingParams, StructuredOutput  # noqa: E402
from diffuspec.draft_server.config import DraftServerConfig  # noqa: E402
from diffuspec.serve.settings import ServeSettings  # noqa: E402

OUTPUT = ROOT / "docs" / "configuration.md"
Schema: TypeAlias = Mapping[str, Any]

_TITLE = """\
# Configuration reference

Made from the schema by `make docs`; do not edit it by hand.

An [**engine**](#engine) file describes the models of one process and how they work together, for
`diffuspec generate --config FILE.yaml`, `diffuspec serve` (with a section [`serve`](#serve)), or
`load_config(path)` of `diffuspec`. A [**pipeline**](#pipeline) file adds where the roles of a
cluster run, with the engine's sections below `engine`: `python -m deploy.demo --config FILE.yaml`,
or `load_pipeline(path)` of `actors.settings`. [Draft servers](#draft-server) and
[pools](#pool-of-draft-servers) of them have their own files; [requests](#requests) have parameters.

Unknown keys, duplicate keys and values of a wrong type are errors that name the key. The defaults
of the algorithm are the paper's constants ([arXiv 2510.02358](https://arxiv.org/abs/2510.02358)).
No key is read from environment variables; only the token may be (`rpc.token_file`).
"""

_ENGINE = """\
## Engine

```yaml
target:
  path: models/Qwen2.5-32B-Instruct
  dtype: bfloat16
  max_model_len: 8192
drafter:
  path: models/Dream-v0-Instruct-7B
search:
  ngram: models/chat.bin
speculation: {policy: cost_aware, tree_shape: best_first}
```

`preset: tiny` stands for the embedded pair, `preset: smollm2` for the one that `make smollm2`
fetches; other keys override the preset's. `parse_config(mapping)` of `diffuspec` takes the same as
a Python mapping.
"""

_PIPELINE = """\
## Pipeline

```yaml
engine:
  preset: tiny
  target: {device: cpu, max_sequences: 4}
  coordinator: {overlap: true}
placement:
  verifier: {num_cpus: 0.25}
deadlines:
  start_seconds: 300
```

Whole files: [deploy/pipeline.yaml](../deploy/pipeline.yaml) (the embedded pair on CPUs) and
[deploy/dream_qwen.yaml](../deploy/dream_qwen.yaml) (Dream-7B and Qwen2.5-32B on GPUs).
"""

_DRAFT_SERVER = """\
## Draft server

The file of `diffuspec draft-server --config FILE.yaml`: see [Other engines](engines.md). Sections
`drafter` and `search` are those of an engine.

```yaml
drafter: {path: models/Dream-v0-Instruct-7B}
search: {ngram: models/chat.bin}
tokenizer: models/Qwen2.5-32B-Instruct
max_requests: 64
tenants: {chat: 4, batch: 1}
```
"""

_DRAFT_POOL = """\
## Pool of draft servers

The file of `diffuspec ray draft-pool --config FILE.yaml`: see
[the pool](deployment.md#a-pool-of-draft-servers). `server` has the keys of a draft server,
`resources` those of [`placement.path_scorer`](#placementpath_scorer).

```yaml
server: {preset: tiny}
resources: {num_cpus: 1}
scaling: {min_servers: 1, max_servers: 4}
```
"""

_SCALING = """\
### `scaling` of a pool

```yaml
server: {preset: tiny}
scaling: {max_servers: 8, target_drafting_share: 0.5, down_seconds: 600}
```
"""

_REQUESTS = """\
## Requests

The parameters of one request: `SamplingParams` of `diffuspec`, the message of the same name in
[types.proto](../protos/diffuspec/v1/types.proto), and options of `diffuspec generate`, such as
`--top-p`. How a request is drafted is `SpeculationParams`; the section
[`speculation`](#speculation) has its parameters, as the defaults of a deployment.

```python
from diffuspec import SamplingParams

SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=128, stop=["\\n\\n"])
```
"""

_FORMS = """\
### `structured_output`

The form of an answer: `StructuredOutput`, or a mapping, with exactly one of these. Only tokens that
can still lead to the form are drawn, and EOS only once the answer has it. A form that is malformed,
or whose grammar would be too large, is refused before any work.

```python
from diffuspec import SamplingParams, StructuredOutput

SamplingParams(structured_output=StructuredOutput(choice=["Yes", "No"]))
```
"""

_SERVICE = """\
## `serve`

A section of an engine's file that `diffuspec serve --config FILE.yaml` reads and other commands
ignore: see [Serving over HTTP](serving.md). A file with nothing else leaves the models to the
options.

```yaml
serve: {api_keys: keys.yaml, max_body_bytes: 262144, request_seconds: 120}
```
"""

EXAMPLES = {  # keys: classes that read the sections
    "TargetConfig": "target: {path: models/Qwen2.5-7B-Instruct, max_sequences: 16}",
    "DiffuSpecConfig": "drafter: {path: models/Dream-v0-Instruct-7B, num_refinement_steps: 2}",
    "AutoregressiveConfig": "drafter: {kind: sps, path: models/Qwen2.5-0.5B-Instruct}",
    "PromptLookupConfig": "drafter: {kind: pld, max_ngram_tokens: 4}",
    "SamdRecyclingConfig": "drafter: {kind: samd_recycling, min_match_tokens: 8}",
    "SuffixAutomatonConfig": "drafter: {kind: samd, texts: answers.jsonl}",
    "TokenRecyclingConfig": "drafter: {kind: token_recycling}",
    "LookaheadConfig": "drafter: {kind: lookahead, num_columns: 10}",
    "MedusaConfig": "drafter: {kind: medusa, path: models/medusa-vicuna-7b-v1.3}",
    "HydraConfig": "drafter: {kind: hydra, path: models/hydra-vicuna-7b-v1.3}",
    "EagleConfig": "drafter: {kind: eagle, path: models/EAGLE-Vicuna-7B-v1.3}",
    "Eagle2Config": "drafter: {kind: eagle2, path: models/EAGLE-Qwen2-7B-Instruct}",
    "Eagle3Config": "drafter: {kind: eagle3, path: models/EAGLE3-LLaMA3.1-Instruct-8B}",
    "DFlashConfig": "drafter: {kind: dflash, path: models/Qwen3-8B-DFlash-b16}",
    "DFlashRemoteConfig": (
        "drafter: {kind: dflash_remote, path: models/Qwen3-8B-DFlash-b16, device: cuda}"
    ),
    "SearchConfig": "search: {ngram: models/chat.bin, beam_width: 5}",
    "DraftLengthConfig": "draft_length: {min_draft_tokens: 10, max_draft_tokens: 40}",
    "SpeculationParams": "speculation: {policy: fixed, num_draft_tokens: 16, tree_shape: path}",
    "CoordinatorConfig": "coordinator: {max_waiting: 256, overlap: true}",
    "PlacementSettings": "placement: {strategy: STRICT_PACK}",
    "CoordinatorSettings": "placement:\n  coordinator: {num_cpus: 4, num_threads: 2}",
    "DrafterSettings": "placement:\n  drafter: {count: 2, num_cpus: 4, num_gpus: 0.9}",
    "RoleSettings": "placement:\n  path_scorer: {num_cpus: 4, num_gpus: 0.1}",
    "VerifierSettings": "placement:\n  verifier: {tensor_parallel: 4, num_gpus: 1}",
    "NodeSettings": (
        "placement:\n  verifier:\n    node:\n      labels: {diffuspec-role: verifier}\n"
        "      resources: {verifier_node: 1}"
    ),
    "RpcSettings": "rpc: {max_message_bytes: 67108864}",
    "TlsSettings": (
        "rpc:\n  tls:\n    ca: /home/ubuntu/tls/ca.pem\n    certificate: /home/ubuntu/tls/node.pem"
        "\n    key: /home/ubuntu/tls/node.key\n    server_name: diffuspec"
    ),
    "DeadlineSettings": "deadlines: {verify_seconds: 120, drain_seconds: 60}",
}


def render() -> str:
    """Return the whole document."""
    described = {EngineConfig.__name__}  # each class once
    engine, pipeline = EngineConfig.model_json_schema(), PipelineConfig.model_json_schema()
    parts = [_TITLE, _ENGINE, _table(engine)]
    parts += _sections("", engine, engine["$defs"], described)
    parts += [_PIPELINE, _table(pipeline)]
    parts += _sections("", pipeline, pipeline["$defs"], described)
    parts += [_SERVICE, _table(ServeSettings.model_json_schema())]
    parts += [_DRAFT_SERVER, _table(DraftServerConfig.model_json_schema())]
    parts += [_DRAFT_POOL, _table(DraftPoolConfig.model_json_schema())]
    parts += [_SCALING, _table(DraftScaling.model_json_schema())]
    parts += [_REQUESTS, _table(TypeAdapter(SamplingParams).json_schema())]
    parts += [_FORMS, _table(TypeAdapter(StructuredOutput).json_schema())]
    return "\n".join(parts)


def _sections(
    prefix: str, schema: Schema, definitions: Schema, described: set[str]
) -> Iterator[str]:
    """Yield a chapter for every section below this one whose class has none yet."""
    for key, value in schema["properties"].items():
        for name in _references(value):
            if name in described:
                continue
            described.add(name)
            section, path = definitions[name], f"{prefix}{key}"
            yield f"### `{path}`{_kind(section)}\n"
            yield _first_paragraph(section["description"])
            yield f"```yaml\n{EXAMPLES[name]}\n```\n"
            yield _table(section)
            yield from _sections(f"{path}.", section, definitions, described)


def _references(value: Schema) -> list[str]:
    """Return the names of the classes that read a key's value; several are alternatives."""
    schemas = [value, *value.get("anyOf", ()), *value.get("oneOf", ())]
    found = [one["$ref"].rpartition("/")[2] for one in schemas if "$ref" in one]
    return found + [name for one in schemas[1:] if "oneOf" in one for name in _references(one)]


def _kind(section: Schema) -> str:
    kind = section["properties"].get("kind", {})
    return f" of kind `{kind['const']}`" if "const" in kind else ""


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()) + "\n"


def _table(schema: Schema) -> str:
    rows = ["| key | type | default | values | meaning |", "|---|---|---|---|---|"]
    for key, value in schema["properties"].items():
        is_required = key in schema.get("required", ())
        default = "**required**" if is_required else _default(value)
        meaning = value["description"].replace("|", "\\|")
        rows.append(f"| `{key}` | {_type(key, value)} | {default} | {_values(value)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _alternatives(value: Schema) -> list[Schema]:
    return [one for one in value.get("anyOf", [value]) if one.get("type") != "null"]


_TYPES = {"integer": "integer", "number": "number", "boolean": "boolean", "string": "text"}
_UNITS = ("seconds", "tokens", "bytes")  # units that a key may end with


def _type(key: str, value: Schema) -> str:
    """Return the type and, where the key's name says it, the unit."""
    names = dict.fromkeys(_type_name(one) for one in _alternatives(value))
    unit = key.rpartition("_")[2]
    return " or ".join(names) + (f", {unit}" if unit in _UNITS else "")


def _type_name(value: Schema) -> str:
    if _references(value):
        return "section"
    if "items" in value:
        return f"list of {_type_name(value['items'])}"
    if "additionalProperties" in value:
        return f"mapping to {_type_name(value['additionalProperties'])}"
    if value.get("format") == "path":
        return "path"
    return "choice" if "enum" in value or "const" in value else _TYPES[value["type"]]


def _default(value: Schema) -> str:
    default = value.get("default", {})  # an empty mapping is made for each, so the schema lacks it
    if isinstance(default, dict) and default:
        return "its defaults"  # a section
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _values(value: Schema) -> str:
    """Return which values are right: a range, words, or nothing where the type says it all."""
    found = [_range(one) for one in _alternatives(value)]
    return ", or ".join(text for text in found if text)


def _range(value: Schema) -> str:
    words = value.get("enum", [value["const"]] if "const" in value else [])
    if words:
        return ", ".join(f"`{word}`" for word in words)
    if "items" in value:
        least, most = value.get("minItems", 0), value.get("maxItems")
        count = "" if most is None else f"{least} to {most:,}" if least else f"at most {most:,}"
        return ", ".join(text for text in (count, _length(value["items"])) if text)
    if "additionalProperties" in value:
        return _range(value["additionalProperties"])
    if "minimum" in value and "maximum" in value:
        return f"{_plain(value['minimum'])} to {_plain(value['maximum'])}"
    bounds = {
        "minimum": "{} or more",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
    }
    return ", ".join(text.format(_plain(value[k])) for k, text in bounds.items() if k in value)


def _length(value: Schema) -> str:
    if "maxLength" not in value:
        return ""
    return f"of {value.get('minLength', 0)} to {value['maxLength']} characters each"


def _plain(number: float) -> str:
    return {-(2**63): "-2^63", 2**63 - 1: "2^63 - 1"}.get(int(number)) or f"{number:,}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare contents")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    options = parser.parse_args(arguments)
    fresh = render()
    if not options.check:
        options.output.write_text(fresh, encoding="utf-8")
    elif options.output.read_text(encoding="utf-8") != fresh:
        print(f"{options.output} is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
