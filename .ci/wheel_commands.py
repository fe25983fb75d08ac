"""The commands of an installed wheel, each on real input, without the extras and with each of them.

A module of an extra that is not chosen cannot be imported, in any process of the command.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import Request, urlopen

_OTEL = ("opentelemetry.exporter", "opentelemetry.sdk")  # the API is one of FastAPI's dependencies
EXTRAS = {  # modules that each extra adds
    "bench": ("matplotlib",),
    "ray": ("ray", *_OTEL),
    "otel": _OTEL,
    "data": ("ray", *_OTEL, "pandas", "pyarrow"),
    "gguf": ("gguf",),
}
NOT_OF_USERS = ("dev", "docs")
# Read by each Python that starts in the environment, those of pools and clusters included.
_BLOCKER = (
    "import os, sys; sys.modules.update(dict.fromkeys(os.environ.get('WITHOUT', '').split()))\n"
)
_READY = re.compile(r"(?:serving \S+|drafting) on (\S+)")
_QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 8,
    "temperature": 0,
}


@dataclass(frozen=True)
class Row:
    """A command that ends by itself."""

    command: str
    arguments: tuple[str, ...] = ()
    needs: str | None = None  # the extra without which it says how to install it


@dataclass(frozen=True)
class Service(Row):
    """A command that runs until SIGTERM."""

    asked_by: Row | None = None  # whose last argument is the service's URL


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def rows(target: str) -> list[Row]:
    batch = ("--input", "in.jsonl", "--max-tokens", "4", "--output")
    training = ("--num-answers", "40", "--chunks", "1", "--batch-tokens", "64")
    few = ("--limit", "1", "--max-tokens", "4")
    load = Row("load", (*few, "--at-a-time", "1", "--rounds", "1"), needs="bench")
    return [
        Row("env"),
        Row("generate", ("What is the capital of France?", "--max-tokens", "16")),
        Row("demo"),
        Row("bench", few, needs="bench"),
        Row("audit", few),
        Row("model explain", (target,)),
        Row("model import", ("tiny.gguf", "--out", "imported"), needs="gguf"),
        Row("ngram build", ("text.txt", "--out", "text.arpa")),
        Row("keys add", ("keys.yaml", "alice")),
        Row("drafter answers", ("--target", target, "--out", "answers", "--num-answers", "4")),
        Row("drafter train", ("--target", target, "--out", "drafter", *training)),
        Row("drafter evaluate", ("drafter", "--answers", "drafter/training/answers.jsonl")),
        Row("plan", ("--pair", "tiny", "--answer-tokens", "16", "--at-a-time", "1"), needs="bench"),
        Row("plan record", ("--pair", "tiny", *few)),
        Row("batch", (*batch, "process.jsonl", "--engine", "process")),
        Row("batch", (*batch, "pipeline.jsonl"), needs="ray"),
        Row("batch", (*batch, "data", "--engine", "data"), needs="data"),
        Service("serve", ("--port", "0"), asked_by=load),
        Row("draft-server", ("--pair", "tiny", "--explain")),
        Service("draft-server", ("--pair", "tiny", "--listen", "127.0.0.1:0")),
        Service("ray serve", ("--port", _free_port()), needs="ray"),
        Service("ray draft-pool", needs="ray"),
    ]


@dataclass(frozen=True)
class Wheel:
    """An installed wheel, and a directory that holds no checkout."""

    python: Path
    directory: Path
    env: Mapping[str, str]

    def prepare(self) -> None:
        [packages] = self.directory.glob("lib/python*/site-packages")
        (packages / "without.pth").write_text(_BLOCKER)
        (self.directory / "in.jsonl").write_text('{"prompt": "Once", "max_tokens": 4}\n')
        (self.directory / "text.txt").write_text("Once upon a time there was an owl.\n")

    def check(self, extra: str | None) -> None:
        """Run every command with one extra, or with none. Exits if one does not work."""
        added = EXTRAS[extra] if extra else ()
        absent = {module for modules in EXTRAS.values() for module in modules} - set(added)
        here = Wheel(self.python, self.directory, {**self.env, "WITHOUT": " ".join(absent)})
        present = {name for name, modules in EXTRAS.items() if set(modules) <= set(added)}
        listed = rows(here._output("-c", _TARGET))
        for row in listed:
            here._check(row, present)
            print(f"diffuspec[{extra or ''}]: {row.command}", flush=True)

    def _check(self, row: Row, present: Set[str]) -> None:
        if row.needs not in (None, *present):
            self._check_refusal(row)
        elif isinstance(row, Service):
            self._check_service(row, present)
        else:
            self._output(*self._words(row))

    def _words(self, row: Row) -> tuple[str, ...]:
        return ("-m", "diffuspec", *row.command.split(), *row.arguments)

    def _output(self, *arguments: str) -> str:
        ran = self._run(*arguments)
        if ran.returncode != 0 or "Traceback" in ran.stderr:
            sys.exit(f"{arguments} ends with {ran.returncode}: {ran.stdout}{ran.stderr}")
        return ran.stdout.strip()

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (str(self.python), *arguments)
        return subprocess.run(
            command, cwd=self.directory, env=self.env, capture_output=True, text=True, check=False
        )

    def _check_refusal(self, row: Row) -> None:
        ran = self._run(*self._words(row))
        needed = rf"pip install '?diffuspec\[{row.needs}\]"
        if ran.returncode != 2 or not re.search(needed, ran.stderr):
            sys.exit(f"{row} without {row.needs}: {ran.returncode}, {ran.stderr}")

    def _check_service(self, service: Service, present: Set[str]) -> None:
        """Start a service, ask it a question if it speaks HTTP, and stop it."""
        command = (str(self.python), *self._words(service))
        log = self.directory / "service.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                ready = next(filter(None, map(_READY.search, process.stdout)), None)
                if ready is None:
                    sys.exit(f"{service} does not start: {log.read_text()}")
                if "serving" in ready[0]:
                    self._ask(ready[1], service, present)
            finally:
                process.send_signal(signal.SIGTERM)
            process.stdout.read()
        if process.returncode != 0 or "Traceback" in log.read_text():
            sys.exit(f"{service} ends with {process.returncode}: {log.read_text()}")

    def _ask(self, url: str, service: Service, present: Set[str]) -> None:
        body = json.dumps(_QUESTION).encode()
        headers = {"content-type": "application/json"}
        with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=60) as reply:
            [choice] = json.load(reply)["choices"]
        if not choice["message"]["content"]:
            sys.exit(f"{service} answers {choice}")
        if (client := service.asked_by) is not None:
            self._check(replace(client, arguments=(*client.arguments, url)), present)


_TARGET = "from diffuspec.pairs.tiny import TARGET; print(TARGET)"


def check_commands(python: Path, directory: Path, env: Mapping[str, str]) -> None:
    """Run every command of a wheel without the extras, and with each. Exits if one fails."""
    wheel = Wheel(python, directory, {**os.environ, **env})
    wheel.prepare()
    for extra in (None, *EXTRAS):
        wheel.check(extra)
        for made in ("answers", "drafter", "runs", "data", "imported"):
            subprocess.run(("rm", "-rf", directory / made), check=True)
        for made in ("keys.yaml", "process.jsonl", "pipeline.jsonl"):
            (directory / made).unlink(missing_ok=True)
