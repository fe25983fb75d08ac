"""The configuration of a pipeline: defaults, what is refused, and what the errors say."""

from pathlib import Path
from typing import Any

import pytest

from actors.settings import PipelineConfig, load_pipeline, parse_pipeline
from diffuspec.core.errors import ConfigError

TINY: dict[str, Any] = {"preset": "tiny"}


def pipeline(**sections: object) -> PipelineConfig:
    return parse_pipeline({"engine": TINY} | sections)


def test_a_preset_is_a_whole_configuration():
    config = pipeline()
    assert config.engine.target.path.name == "target" and len(config.drafter_processes) == 1
    assert config.placement.strategy == "PACK" and config.placement.verifier.tensor_parallel == 1
    assert config.rpc.tls is None


def test_a_preset_leaves_what_is_given():
    config = parse_pipeline({"engine": {**TINY, "target": {"max_sequences": 3}, "drafter": None}})
    assert config.engine.target.max_sequences == 3
    assert config.engine.target.path.name == "target"
    assert config.engine.drafter is None and config.drafter_processes == ()


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "pipeline.yaml"
    path.write_text("engine: {preset: tiny}\nplacement: {drafter: {count: 2}}\n")
    assert len(load_pipeline(path).drafter_processes) == 2


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"placements": {}}, "unknown key `placements`; did you mean `placement`?"),
        ({"engine": TINY | {"zz": 1}}, "engine: unknown key `zz`; known are `preset`, `target`"),
        ({"placement": {"strategy": "PACKED"}}, "strategy must be .*'STRICT_SPREAD', got"),
        ({"placement": {"drafter": {"gpus": 1}}}, "drafter: unknown key `gpus`; did you"),
        ({"placement": {"drafter": {"count": 0}}}, "drafter.count must be 1 or more, got 0"),
        ({"rpc": {"host": "0.0.0.0"}}, "host must be an address that the other roles can reach"),
        ({"rpc": {"port": 70_000}}, "rpc.port must be at most 65535, got 70000"),
        ({"placement": {"verifier": {"num_gpus": 1.5}}}, "share of one GPU or whole GPUs, got 1.5"),
        (
            {"placement": {"drafter": {"num_gpus": 0.9}, "path_scorer": {"num_gpus": 0.2}}},
            "together must be a share of one GPU or whole GPUs, got 1.1",
        ),
        (
            {"placement": {"verifier": {"tensor_parallel": 2, "num_gpus": 0.5}}},
            "tensor_parallel 2 it must be 1, or 0 on CPUs, got 0.5",
        ),
        (
            {"placement": {"drafter": {"node": {"resources": {"GPU": 1}}}}},
            r"names \['GPU'\]; custom resources go here",
        ),
        (
            {"placement": {"verifier": {"node": {"labels": {"role": "!in(a, b)"}}}}},
            "have spaces, which Ray takes for a part of the label",
        ),
        (
            {"placement": {"coordinator": {"num_cpus": 0.00001}}},
            "coordinator.num_cpus must be 0.0001 or more, got 1e-05",
        ),
        ({"placement": {"coordinator": {"num_cpus": float("inf")}}}, "num_cpus must be .*got inf"),
        (
            {"placement": {"drafter": {"num_gpus": 0.00001}}},
            "num_gpus must be a multiple of 0.0001, got 1e-05",
        ),
        (
            {"placement": {"drafter": {"node": {"resources": {"disk": 0.00001}}}}},
            "resources.disk must be 0.0001 or more, got 1e-05",
        ),
        (
            {"placement": {"drafter": {"node": {"resources": {"": 1}}}}},
            "resources has one without a name",
        ),
        (
            {"placement": {"verifier": {"node": {"labels": {"a b": "c"}}}}},
            "labels has 'a b': 'c'; key and value are up to 63 letters",
        ),
        ({"placement": {"verifier": {"node": {"labels": {"a": "-c"}}}}}, "labels has 'a': '-c'"),
        ({"rpc": {"tls": {"ca": "a"}}}, "rpc.tls.certificate is missing"),
        ({"deadlines": {"verify_seconds": 0}}, "deadlines.verify_seconds must be above 0, got 0"),
        ({"engine": {"preset": "small"}}, "preset must be tiny or smollm2, got 'small'"),
        ({"engine": {**TINY, "targets": {}}}, "engine: unknown key `targets`; did you"),
        (
            {"engine": {**TINY, "drafter": {"path": "d", "device": "cuda"}}},
            "engine.drafter.device is cuda, but placement.drafter.num_gpus is 0",
        ),
    ],
)
def test_what_is_wrong_is_named(sections, message):
    with pytest.raises(ConfigError, match=message):
        pipeline(**sections)


@pytest.mark.parametrize(
    ("key", "value"),
    [("role", "!in(drafter,head)"), ("role", "in(a)"), ("role", "!a"), ("ray.io/a-b_c", "")],
)
def test_labels_may_be_ray_s_selectors(key, value):
    pipeline(placement={"verifier": {"node": {"labels": {key: value}}}})


def test_resources_have_ray_s_resolution():
    config = pipeline(placement={"drafter": {"num_cpus": 0.33336}})
    assert config.placement.drafter.num_cpus == 0.3334


def test_a_drafter_of_another_kind_takes_nothing_of_the_preset():
    config = pipeline(engine=TINY | {"drafter": {"kind": "pld", "num_draft_tokens": 5}})
    drafter = config.engine.drafter
    assert drafter is not None and drafter.kind == "pld" and drafter.num_draft_tokens == 5
    assert config.drafter_processes == () and "pld" in config.drafters_in("coordinator")
    assert [process.needs_path_scorer for process in pipeline().drafter_processes] == [True]


def test_a_gpu_for_a_drafter_without_a_process_is_refused():
    with pytest.raises(ConfigError, match=r"kind pld have no process .* placement\.drafter\.num_g"):
        pipeline(engine=TINY | {"drafter": {"kind": "pld"}}, placement={"drafter": {"num_gpus": 1}})


def test_every_drafter_with_a_model_has_processes_in_its_own_place():
    config = pipeline(
        engine=TINY | {"drafters": {"small": {"kind": "sps", "path": "m"}, "pld": {"kind": "pld"}}},
        placement={"drafter": {"count": 2}, "drafters": {"small": {"num_cpus": 0.5}}},
    )
    assert [(p.index, p.role, p.needs_path_scorer) for p in config.drafter_processes] == [
        (0, "drafter diffuspec 0", True),
        (1, "drafter diffuspec 1", True),
        (2, "drafter small 0", False),
    ]
    assert config.drafter_processes[2].settings.num_cpus == 0.5


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"drafters": {"pld": {}}}, r"drafters\.pld: the drafters with .* are diffuspec, small"),
        (
            {"drafter": {"num_gpus": 1}, "drafters": {"small": {}}},
            r"engine\.drafters\.small\.device is cuda, .* placement\.drafters\.small\.num_gpus is",
        ),
        ({"drafters": {"small": {"num_gpus": 1.5}}}, r"drafters\.small: num_gpus must be a share"),
    ],
)
def test_wrong_places_of_named_drafters_are_refused(placement, message):
    device = "auto" if "pld" in placement["drafters"] else "cuda"
    small = {"kind": "sps", "path": "m", "device": device}
    engine = TINY | {"drafters": {"small": small, "pld": {"kind": "pld"}}}
    with pytest.raises(ConfigError, match=message):
        pipeline(engine=engine, placement=placement)


def test_drafter_and_scorer_share_a_gpu():
    placement = pipeline(
        placement={"drafter": {"num_gpus": 0.9}, "path_scorer": {"num_gpus": 0.1}}
    ).placement
    assert placement.shared_gpus(placement.drafter) == 1.0


def test_tls_files_and_limits_reach_the_wire():
    tls = {"ca": "/a", "certificate": "/b", "key": "/c", "server_name": "diffuspec"}
    config = pipeline(rpc={"tls": tls, "max_message_bytes": 2**20})
    security = config.security("secret")
    assert security.tls is not None and security.tls.server_name == "diffuspec"
    assert security.tls.ca == Path("/a") and "secret" not in repr(security)
    limits = config.limits(3.0)
    assert limits.max_message_bytes == 2**20 and limits.max_step_seconds == 3.0


def test_every_key_is_described_for_the_reference():
    schema = PipelineConfig.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, field in section["properties"].items():
            assert field["description"].endswith("."), name
