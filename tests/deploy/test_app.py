"""The application's arguments, and files of Serve: every key is one that is read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray._common.utils import import_attr
from ray.serve import Application, Deployment
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from actors.service.autoscaling import by_requests
from actors.service.settings import parse_service
from deploy.app import build
from deploy.serve import read_serve_file, unknown_keys
from diffuspec.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
NAMES = ("serve.yaml", "serve_dream_qwen.yaml", "serve_together.yaml")
FILES = [ROOT / "deploy" / name for name in NAMES]
TINY: dict[str, Any] = {"pipeline": {"engine": {"preset": "tiny"}}}


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_of_a_file_is_in_serve_s_schema(path):
    assert read_serve_file(path).applications[0].name == "diffuspec"


def test_keys_that_serve_would_ignore_are_refused(tmp_path):
    data = read(FILES[0])
    ingress, pipelines = data["applications"][0]["deployments"]
    data["http_options"]["hosts"] = "0.0.0.0"
    ingress["autoscaling_config"]["min_replica"] = 1
    pipelines["max_ongoing_request"] = 3
    ServeDeploySchema.model_validate(data)  # it does ignore them
    assert [*unknown_keys(ServeDeploySchema, data)] == [
        "http_options.hosts",
        "applications.deployments.autoscaling_config.min_replica",
        "applications.deployments.max_ongoing_request",
    ]
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(ConfigError, match=r"Serve has no key http_options.hosts, app.*"):
        read_serve_file(path)


OTHER = "not a file of Ray Serve, .*, but "


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {preset: tiny}", f"{OTHER}a pipeline's: name it as `pipeline` in the args"),
        (
            "preset: tiny\nserve: {port: 8000}",
            f"{OTHER}an engine's, for `diffuspec serve --config`",
        ),
        ("target: {path: here}", f"{OTHER}an engine's"),
        ("http_options: {port: high}\napplications: []", r"http_options\.port: "),
    ],
)
def test_another_file_of_ours_and_a_value_that_serve_refuses_are_named(text, told, tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_serve_file(path)


def deployments(application: Application) -> dict[str, Deployment]:
    ingress = application._bound_deployment
    others = [one for one in ingress.init_args if isinstance(one, Application)]
    return {one.name: one for one in (ingress, *(one._bound_deployment for one in others))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_listens_on_loopback_and_its_application_can_be_built(path):
    data = read(path)
    assert data["http_options"]["host"] == "127.0.0.1"
    [application] = data["applications"]
    assert application["import_path"] == "deploy.app:build"
    bound = deployments(build(application["args"]))
    assert {one["name"] for one in application["deployments"]} <= bound.keys()


def test_the_builder_takes_arguments_of_a_command_line():
    """Serve passes a mapping on, and not a model's class that it found in an annotation."""
    builder = import_attr("deploy.app:build")
    args = {"pipeline": "deploy/pipeline.yaml", "model_name": "tiny"}
    application = call_user_app_builder_with_args_if_necessary(builder, args)
    config = deployments(application)["Ingress"].init_args[0]
    assert config.model_name == "tiny" and len(config.pipeline.drafter_processes) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "pipeline is missing"),
        ({"pipeline": "deploy/none.yaml"}, "cannot read configuration .*none.yaml"),
        ({"pipeline": {"engine": {"preset": "large"}}}, "engine.preset must be tiny or smollm2"),
        ({"pipeline": 3}, "pipeline must be the path of a file or a mapping, got 3"),
        ({**TINY, "models": "x"}, "unknown key `models`"),
        ({**TINY, "http": {"max_body": 1}}, "http: unknown key `max_body`"),
        ({**TINY, "http": {"max_body_bytes": 2**30}}, "max_body_bytes must be at most 16777216"),
        ({**TINY, "patience_seconds": 0}, "patience_seconds must be above 0, got 0"),
    ],
)
def test_wrong_arguments_are_refused_with_what_would_be_right(args, message):
    with pytest.raises(ConfigError, match=message):
        build(args)


def test_a_pipeline_gets_the_time_that_its_requests_get():
    args = {"pipeline": {"engine": {"preset": "tiny"}, "deadlines": {"drain_seconds": 77}}}
    options = deployments(build(args))["Pipeline"]._deployment_config
    assert options.graceful_shutdown_timeout_s == 97


# ---- the number of pipelines


def test_calls_of_the_directory_fill_no_log():
    options = deployments(build(TINY))["Directory"]._deployment_config
    assert not options.logging_config["enable_access_log"]


def test_the_pipelines_audit_what_the_service_is_to_audit():
    assert parse_service({**TINY, "http": {"audit_rate": 0.25}}, ROOT).pipeline.audit_rate == 0.25
    given = {"pipeline": {**TINY["pipeline"], "audit_rate": 0.5}}
    assert parse_service(given, ROOT).pipeline.audit_rate == 0.5


def context(loads: dict[str, float] | None, target_num_replicas: int = 3) -> Any:
    metrics = {} if loads is None else {"num_requests": loads}
    config = AutoscalingConfig(target_ongoing_requests=8, max_replicas=9)
    return SimpleNamespace(
        aggregated_metrics=metrics, config=config, target_num_replicas=target_num_replicas
    )


@pytest.mark.parametrize(("loads", "wanted"), [((20, 12), 4), ((1, 1), 0.25), ((0, 0), 0)])
def test_the_number_of_pipelines_follows_what_runs_and_waits_in_them(loads, wanted):
    assert by_requests(context(dict(zip("ab", loads, strict=True)))) == (wanted, {})


def test_before_any_pipeline_has_reported_nothing_changes():
    assert by_requests(context(None)) == (3, {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_serve_loads_the_policy_that_a_file_names(path):
    given = [one.get("autoscaling_config") for one in read(path)["applications"][0]["deployments"]]
    policies = [AutoscalingConfig(**one).policy for one in given if one and "policy" in one]
    assert all(one.get_policy().__name__ == by_requests.__name__ for one in policies)
