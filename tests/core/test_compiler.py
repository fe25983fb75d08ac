"""transformers is imported without torch's compiler, which is there for whoever asks for it."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from diffuspec.core.compiler import without_compiler

with without_compiler():
    from transformers import masking_utils
    from transformers.models.llama import modeling_llama
print([name for name in sys.modules if name.startswith("torch._dynamo")])
with masking_utils.TransformGetItemToIndex() as mode:
    print(type(mode).__module__)
import torch
print(torch._dynamo.__file__.endswith("__init__.py"))
"""


@pytest.mark.slow
def test_models_of_transformers_are_imported_without_the_compiler():
    ran = subprocess.run(
        (sys.executable, "-c", PROGRAM), check=True, capture_output=True, text=True
    )
    there, mode, is_real = ran.stdout.splitlines()
    assert there == "[]"
    assert mode == "torch._dynamo._trace_wrapped_higher_order_op"
    assert is_real == "True"
