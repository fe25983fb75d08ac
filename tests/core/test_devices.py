"""What the processor says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.core.devices import has_bfloat16_products


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f", False)],
)
def test_bfloat16_products_are_read_from_the_processors_flags(
    flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_bf16\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert has_bfloat16_products.__wrapped__() is expected
