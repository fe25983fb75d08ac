"""Real clients from PyPI and npm against a service: which of them work, as a table in Markdown.

    diffuspec serve &
    python -m benchmarks.clients http://127.0.0.1:8000

Each client is installed in ~/.cache/diffuspec/clients (--environments), in an environment of its
own, at the version below, on its first run; all of them take 3 GB. One that cannot be installed is
left out, and named. A program in programs/ asks for a text, a stream, a forced call of a tool, an
answer in a form and something wrong, and prints which of them came as its client promises.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.request import urlopen

import typer

from diffuspec.text.directory import cache_directory

PROGRAMS = Path(__file__).parent / "programs"
ASPECTS = ("text", "streams", "tools", "forms", "errors")
_MAX_SECONDS = 300
_MARKS = {True: "yes", False: "**no**", None: ""}


class Client(NamedTuple):
    """A client, and the packages that it needs; a program that ends in .mjs runs in Node."""

    program: str
    packages: tuple[str, ...]
    has_binary: bool = False  # which the install script of its npm package puts in place


CLIENTS = (
    Client("openai_py.py", ("openai==3.54.0",)),
    Client("anthropic_py.py", ("anthropic==2.14.0",)),
    Client("litellm_py.py", ("litellm==1.110.2",)),
    Client("langchain_py.py", ("langchain-openai==1.7.4",)),
    Client("instructor_py.py", ("instructor==1.17.0",)),
    Client("pydantic_ai_py.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("openai_agents_py.py", ("openai-agents==0.24.0",)),
    Client("smolagents_py.py", ("smolagents[openai]==1.26.0",)),
    Client("inspect_ai_py.py", ("inspect-ai==0.3.285", "openai==3.54.0")),
    Client("haystack_py.py", ("haystack-ai==3.4.1",)),
    Client("openai_node.mjs", ("openai@6.49.0",)),
    Client("anthropic_node.mjs", ("@anthropic-ai/sdk@1.14.0",)),
    Client("ai_sdk_node.mjs", ("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92")),
    Client("ai_sdk_openai_node.mjs", ("ai@7.0.173", "@ai-sdk/openai@4.0.118")),
    Client("ai_sdk_anthropic_node.mjs", ("ai@7.0.173", "@ai-sdk/anthropic@4.0.105")),
    Client("codex_node.mjs", ("@openai/codex@0.171.0",)),
    Client("claude_code_node.mjs", ("@anthropic-ai/claude-code@2.1.332",), has_binary=True),
    Client("opencode_node.mjs", ("opencode-ai@1.18.33",), has_binary=True),
)


def run(
    url: Annotated[str, typer.Argument(help="URL of the service, without /v1.")],
    only: Annotated[str, typer.Option(help="Only programs whose name has this text.")] = "",
    environments: Annotated[
        Path | None, typer.Option(help="Folder of their environments.", metavar="DIR")
    ] = None,
) -> None:
    """Run every client, and print the table. Exits with 1 if one does not work."""
    url = url.rstrip("/")
    with urlopen(f"{url}/v1/models", timeout=30) as reply:
        model = json.load(reply)["data"][0]["id"]
    folder = (environments or cache_directory() / "clients").absolute()
    chosen = [client for client in CLIENTS if only in client.program]
    with ThreadPoolExecutor(max_workers=2) as pool:
        tried = list(pool.map(lambda client: _try(client, folder, url, model), chosen))
    found = {client: seen for client, seen in zip(chosen, tried, strict=True) if seen is not None}
    print(f"| client | {' | '.join(ASPECTS)} |\n|---|{'---|' * len(ASPECTS)}")
    for client, seen in found.items():
        marks = [_MARKS[seen.get(aspect)] for aspect in ASPECTS]
        print(f"| {', '.join(client.packages)} | {' | '.join(marks)} |")
    if not all(seen and all(seen.values()) for seen in found.values()):
        raise typer.Exit(1)


def _try(client: Client, folder: Path, url: str, model: str) -> Mapping[str, bool] | None:
    """Return what worked; what a program does not ask for is missing. None: not installed."""
    print(f"{client.program} ...", file=sys.stderr, flush=True)
    try:
        command = _install(client, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        packages = ", ".join(client.packages)
        print(f"{packages} cannot be installed: {error}", file=sys.stderr, flush=True)
        return None
    try:
        ran = subprocess.run(
            [*command, url, model], capture_output=True, text=True, timeout=_MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return _failed(client, f"no answer in {_MAX_SECONDS} s")
    if ran.returncode != 0:
        return _failed(client, ran.stderr)
    seen: dict[str, bool] = json.loads(ran.stdout.strip().splitlines()[-1])
    return seen


def _failed(client: Client, why: str) -> Mapping[str, bool]:
    print(f"{client.program}: {why[-2000:]}", file=sys.stderr, flush=True)
    return dict.fromkeys(ASPECTS, False)


def _install(client: Client, environments: Path) -> list[str | Path]:
    """Install a client unless it is there; return the command of its program."""
    folder = environments / client.program.partition(".")[0]
    is_node, done = client.program.endswith(".mjs"), folder / ".installed"
    wanted = " ".join(client.packages)
    if not done.exists() or done.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        if is_node:
            options = ["--no-audit", "--no-fund", "--silent"]
            options += [] if client.has_binary else ["--ignore-scripts"]
            install: tuple[str | Path, ...] = ("npm", "install", "--prefix", folder, *options)
        else:
            venv.create(folder, with_pip=True)
            install = (folder / "bin/python", "-m", "pip", "install", "--quiet")
        subprocess.run((*install, *client.packages), check=True, stdout=subprocess.DEVNULL)
        done.write_text(wanted)
    source = (PROGRAMS / client.program).read_bytes()
    program = folder / client.program  # beside its packages: Node looks for them there
    program.write_bytes(source)
    return ["node" if is_node else folder / "bin/python", program]


app = typer.Typer(add_completion=False)
app.command()(run)
