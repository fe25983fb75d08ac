"""One thread for torch, property tests that are the same on every run, shared checkpoints."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # as torch finds it
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads leave the processors to other tests
# Ray forks to start a process; gRPC's fork handlers abort one in fifty of those children.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
if not os.path.exists("/dev/nvidiactl"):  # no GPU: kernels run in Triton's interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

import asyncio
import contextlib
import gc
import logging
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from coverage import Coverage
from hypothesis import settings

from tests.support.fork_server import LIBRARIES, MODULES, fork_server
from tests.support.forked import SERVER_VARIABLE, forked
from tests.support.measured_imports import measured_imports
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

_REPORT = "report"
_LONGEST = (  # files, so that none of them begins when the others are over
    "lossless/test_cluster.py",
    "lossless/test_embedded_pair.py",
    "actors/test_pipeline.py",
    "deploy/test_serve.py",
    "actors/test_chaos.py",
    "actors/supervision/test_verifier_recovery.py",
    "lossless/test_resumption.py",
    "deploy/test_batch_job.py",
    "deploy/test_demo.py",
    "deploy/batches/data/test_engine.py",
    "actors/test_drafters.py",
    "actors/test_exporter.py",
    "deploy/test_grpc.py",
    "test_memory.py",
)
_CLIENTS = ("anthropic", "openai")  # which take seconds to import
_TESTS = Path(__file__).parent
_cluster = contextlib.ExitStack()  # which stops the Ray cluster, if there is one
_on_cluster: set[Path] = set()  # files that share it

settings.register_profile(
    "diffuspec", derandomize=True, deadline=None, database=None, max_examples=50
)
settings.load_profile("diffuspec")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is made of GGUF files out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-requests", type=int, default=6, help="asked while processes die")
    parser.addoption("--memory-requests", type=int, default=500, help="answered by one engine")
    parser.addoption("--schemas", type=int, default=300, help="random ones, checked by jsonschema")
    parser.addoption("--chaos-seed", type=int, default=1694, help="of what goes wrong, and when")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a command sets: its lines go to a stream that is closed with the test."""
    root = logging.getLogger()
    before, level = {*root.handlers}, root.level
    yield
    for handler in {*root.handlers} - before:
        root.removeHandler(handler)
    root.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    if SERVER_VARIABLE not in os.environ:  # not a forked worker of xdist, which has its own
        stack = contextlib.ExitStack()
        # Coverage has to see what it measures imported.
        modules = LIBRARIES if config.getoption("cov_source", None) else MODULES
        stack.enter_context(fork_server([*modules, *_CLIENTS]))  # idle until it is first asked
        config.add_cleanup(stack.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Fork the workers; measure nothing in this process, where no test runs."""
    if coverage := Coverage.current():
        coverage.stop()
    for spec in specs:
        spec.python = shlex.join(forked())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End what pytest-cov measures in a worker before it knows that it is one.

    Its own measurement, begun next, would be on top of it, and `no_cover` would uncover it again.
    """
    if hasattr(session.config, "workerinput") and (early := Coverage.current()):
        early.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Measure no more of the collection than imports: it takes twice as long when it is traced."""
    with measured_imports(Coverage.current()):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that share a cluster first, then the longest; the others keep their order."""
    places = {_TESTS / name: place for place, name in enumerate(_LONGEST)}
    _on_cluster.update(item.path for item in items if "cluster" in _fixtures_of(item))
    items.sort(key=lambda i: (i.path not in _on_cluster, places.get(i.path, len(places))))


def _fixtures_of(item: pytest.Item) -> Sequence[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else ()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stop the cluster after the last file that shares it: idle, it takes a tenth of a core."""
    if item.path not in _on_cluster:
        _stop_cluster()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    _stop_cluster()


def _stop_cluster() -> None:
    _cluster.close()
    _start_cluster.cache_clear()


def pytest_collection_finish() -> None:
    """Keep garbage collection from walking through all tests, a third of a second each time."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test in terminalreporter.getreports("passed"):
        for name, text in test.user_properties:
            if name == _REPORT:
                terminalreporter.write_line(f"\n{text}")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return where a random target of a family is; it is made once."""
    from tests.support.checkpoints import save_target  # torch, which xdist's own process can spare

    @cache
    def path(family: str) -> Path:
        return save_target(tmp_path_factory.mktemp(family), family)

    return path


@pytest.fixture(scope="session")
def drafter_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a random block-causal drafter is, over the ids of the random targets."""
    from tests.support.checkpoints import save_drafter

    return save_drafter(tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def cluster() -> "Cluster":
    """A Ray cluster, shared by all files that use one; tests may add nodes, and remove those."""
    return _start_cluster()


@cache
def _start_cluster() -> "Cluster":
    from tests.support.ray_cluster import local_cluster  # takes a second to import

    return _cluster.enter_context(local_cluster())


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a text once all tests have run, even if this one runs in another process."""
    return partial(record_property, _REPORT)
