from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gguf_files import write_gguf


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
