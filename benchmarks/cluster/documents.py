"""The commands of docs/deployment.md, run on the machines as they stand on that page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cluster.machines import HOME, ROOT, Machine
from diffuspec.core.errors import WorkerError

PAGE = ROOT / "docs" / "deployment.md"
NOT_RUN: Mapping[str, str] = {  # beginnings of commands, and what those need
    "cd ~/diffuspec && serve deploy": "Qwen2.5-32B and Dream-7B",
    "ray attach": "a cluster that `ray up` has started by SSH",
    "docker": "Docker",
    "kubectl": "Kubernetes",
}

_MAX_SECONDS = 300.0
_FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BY_SSH = re.compile(r"^ray exec ray_cluster.yaml '(.*)'$")  # what it runs on the head
_COMMENT = re.compile(r" {2,}# .*")
_ENVIRONMENT = f"cd {HOME}/diffuspec; export PATH={HOME}/venv/bin:$PATH RAY_USAGE_STATS_ENABLED=0"
_ON_NODE = f"source {HOME}/diffuspec/deploy/cluster/node.env"


@dataclass(frozen=True, slots=True)
class Way:
    """How a command is run, and what shows that it did what the page says."""

    start: str  # the beginning of the command
    needs_cluster: bool = False
    wanted: str = ""  # a part of its output
    until: str = ""  # for a server: a command that succeeds once it answers; then it is ended
    given: Mapping[str, str] = field(default_factory=dict)  # values for what the reader fills in
    after: str = ""  # more to run, in the same language; its output counts as well


_DRAFTING = "grep -q 'drafting on' ~/output"
WAYS: Sequence[Way] = (
    Way(
        "make serve ARGS",
        until="curl --fail --silent 127.0.0.1:9000/ready",
        given={"my_serve.yaml": "deploy/serve_together.yaml"},
    ),
    Way("make serve", until="curl --fail --silent 127.0.0.1:8000/ready"),
    Way("python -c", given={"my_serve.yaml": "deploy/serve.yaml"}),
    Way("diffuspec keys add", wanted="ds-", given={"keys.yaml": "~/alice.yaml"}),
    Way(
        "diffuspec ray draft-pool --config",
        needs_cluster=True,
        until=_DRAFTING,
        given={
            "FILE.yaml": "deploy/draft_pool.yaml",
            "--token-file FILE": "--token-file ~/.ray/auth_token",
            "--tls-ca FILE": "--tls-ca ~/tls/ca.pem",
            "--tls-certificate FILE": "--tls-certificate ~/tls/node.pem",
            "--tls-key FILE": "--tls-key ~/tls/node.key",
        },
    ),
    Way("diffuspec ray draft-pool", until=_DRAFTING),
    Way("serve status", needs_cluster=True, wanted="RUNNING"),
    Way(
        "from ray import serve",
        needs_cluster=True,
        wanted="ServiceStatus(",
        after=(
            "import asyncio, ray; ray.init('auto')\n"
            "async def ask(): return await (await connect()).status()\n"
            "print(asyncio.run(ask()))"
        ),
    ),
)
# what ray_cluster.yaml and docs/usage.md tell a cluster's owner to do first; HAProxy's counts
_ELSEWHERE: Mapping[str, Way] = {
    # ingresses are reached off the head, the second once it has been replaced, too
    "until curl --silent '127.0.0.1:8404/stats;csv' | grep -c 'Ingress-.*,UP,' | grep 2; "
    "do sleep 1; done": Way("until curl", wanted="2"),
    "python -m deploy.demo --address auto --repeats 1 --trace ~/t.json": Way(
        "python -m deploy.demo", wanted="same tokens: yes"
    ),
    'echo \'{"prompt": "Once", "max_tokens": 8}\' >~/in.jsonl; '
    "ray job submit --address http://127.0.0.1:8265 -- "
    "python -m deploy.batch --input ~/in.jsonl --output ~/out.jsonl": Way(
        "ray job submit", wanted="choices", after="cat ~/out.jsonl"
    ),
}


def commands() -> list[str]:
    """Return the commands of the page; a block of Python is one. `ray exec` is left out."""
    found = []
    for language, text in _FENCE.findall(PAGE.read_text()):
        lines = [text] if language == "python" else text.replace("\\\n", "").splitlines()
        found += [_BY_SSH.sub(r"\1", _COMMENT.sub("", line)) for line in lines if line.strip()]
    return found


def way_of(command: str) -> Way | None:
    """Return how a command is run; None if it is not."""
    return next((way for way in WAYS if command.startswith(way.start)), None)


def run_alone(machine: Machine) -> Iterator[tuple[str, str]]:
    """Run the commands that need one machine; yield each with what went wrong, or ""."""
    return _run_all(machine, _known(needs_cluster=False), _ENVIRONMENT)


def run_on_head(machine: Machine) -> Iterator[tuple[str, str]]:
    """Run the commands that need a cluster; yield each with what went wrong, or ""."""
    known = {**_known(needs_cluster=True), **_ELSEWHERE}
    return _run_all(machine, known, f"{_ENVIRONMENT}; {_ON_NODE}")


def _known(*, needs_cluster: bool) -> dict[str, Way]:
    found = {command: way_of(command) for command in commands()}
    return {
        command: way for command, way in found.items() if way and way.needs_cluster == needs_cluster
    }


def _run_all(
    machine: Machine, known: Mapping[str, Way], environment: str
) -> Iterator[tuple[str, str]]:
    for command, way in known.items():
        name = command.strip().splitlines()[0]
        try:
            shown = machine.run(f"{environment}; {_line(command, way)}", _MAX_SECONDS)
        except WorkerError as error:
            yield name, str(error)
        else:
            yield name, "" if way.wanted in shown else f"no {way.wanted!r} in {shown[-2000:]}"


def _line(command: str, way: Way) -> str:
    """Return a line of bash that runs a command and shows its output."""
    for word, value in way.given.items():
        command = command.replace(word, value)
    if command.startswith("from "):
        return f"python - <<'END'\n{command}\n{way.after}\nEND"
    if not way.until:
        return f"{command} 2>&1; {way.after or 'true'}"
    return (
        f"{command} >~/output 2>&1 & server=$!; until {way.until}; do sleep 0.5; "
        "kill -0 $server || { cat ~/output; exit 1; }; done; kill $server; wait $server || true"
    )
