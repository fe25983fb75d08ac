"""Where a reader types: a folder with diffuspec installed from a wheel, or a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.first_day.typed import ROOT

_QUESTIONS = "diffuspec/pairs/smollm2/questions.jsonl"
_CHAT = (
    '{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]}\n'
)
_PAIR = "diffuspec/pairs/tiny/weights"


@dataclass(frozen=True, slots=True)
class Place:
    """A working folder with an environment, which is the activated one."""

    name: str
    folder: Path
    environment: Path
    library: Path  # folder that has the package diffuspec
    has_checkout: bool

    def env(self) -> dict[str, str]:
        """Return the environment variables of a new terminal."""
        usual = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        path = f"{self.environment / 'bin'}:{usual}"
        return {"HOME": str(Path.home()), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}

    def with_paths(self, command: str) -> str:
        """Return a command with files of this place instead of DIR and FILE."""
        for placeholder, path in self._paths().items():
            command = command.replace(placeholder, f"{placeholder.rpartition(' ')[0]} {path}")
        return command

    def _paths(self) -> Mapping[str, Path]:
        pair, inputs = self.library / _PAIR, _inputs()
        return {
            "serve DIR": pair / "target",
            "--target DIR": pair / "target",
            "--tokenizer DIR": pair / "target",
            "--drafter DIR": pair / "drafter",
            "--ngram FILE": pair / "ngram.bin",
            "--tls-certificate FILE": inputs / "certificate.pem",
            "--tls-key FILE": inputs / "key.pem",
            "--target FILE.gguf": inputs / "tiny.gguf",
            "import FILE.gguf": inputs / "tiny.gguf",
            "--config FILE.yaml": inputs / "engine.yaml",
        }


def wheel_place(wheel: Path) -> Place:
    """Return an empty folder with a wheel installed."""
    folder = Path("/tmp/wheel")
    environment = _environment(folder.with_name("environment"), ())
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python", "install")
    subprocess.run((*pip, "--quiet", "--no-deps", "--no-index", wheel), check=True)
    [library] = environment.glob("lib/python*/site-packages")
    folder.mkdir()
    return _prepared(Place("wheel", folder, environment, library, has_checkout=False))


def checkout_place(wheel: Path) -> Place:
    """Return a clone of this repository, set up; its kernels are those of the wheel."""
    folder = Path("/tmp/checkout")
    git = ("git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks")
    subprocess.run((*git, ROOT, folder), check=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                archive.extract(name, folder)
    environment = _environment(folder / ".venv", (folder,))
    (environment / ".installed").touch()
    return _prepared(Place("checkout", folder, environment, folder, has_checkout=True))


def _environment(folder: Path, first: tuple[Path, ...]) -> Path:
    """Make a virtual environment that sees this one's packages, after the folders `first`."""
    venv.create(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    lines = (*first, sysconfig.get_path("purelib"))
    (packages / "dependencies.pth").write_text("".join(f"{line}\n" for line in lines))
    for script in Path(sys.executable).parent.iterdir():
        target = folder / "bin" / script.name
        if target.exists() or script.is_symlink():
            continue
        text = script.read_bytes()
        if text.startswith(b"#!"):
            mine = str(folder / "bin/python").encode()
            target.write_bytes(text.replace(str(Path(sys.executable)).encode(), mine))
            target.chmod(0o755)
    return folder


def _prepared(place: Place) -> Place:
    """Add what readers have: SmolLM2, questions, texts, and files for DIR and FILE."""
    models = place.folder / "models"
    models.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "models/smollm2", models / "smollm2")
    shutil.copy(ROOT / _QUESTIONS, place.folder / "question.jsonl")
    (place.folder / "chats.jsonl").write_text(_CHAT)
    if not _inputs().exists():
        _write_inputs(place)
    return place


def _inputs() -> Path:
    return Path("/tmp/inputs")


def _write_inputs(place: Place) -> None:
    _inputs().mkdir()
    write = "from tests.support.gguf_files import write_gguf; import pathlib, sys"
    write += "; write_gguf(pathlib.Path(sys.argv[1]))"
    subprocess.run((sys.executable, "-c", write, _inputs() / "tiny.gguf"), cwd=ROOT, check=True)
    pair = place.library / _PAIR
    text = f"target: {{path: {pair / 'target'}}}\ndrafter: {{path: {pair / 'drafter'}}}\n"
    (_inputs() / "engine.yaml").write_text(text)
    certificate = ("-keyout", _inputs() / "key.pem", "-out", _inputs() / "certificate.pem")
    openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    quiet = {"check": True, "stderr": subprocess.DEVNULL, "env": os.environ}
    subprocess.run((*openssl, *certificate), **quiet)  # type: ignore[call-overload]
