"""What is loaded to stay is left out of garbage collections; what is made later is not."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from diffuspec.core.memory import loading_to_stay

class Node:
    def __init__(self):
        self.itself = self

with loading_to_stay():
    with loading_to_stay():
        assert not gc.isenabled()
        staying = weakref.ref(Node())
    assert not gc.isenabled()
assert gc.isenabled()
with loading_to_stay():
    later = weakref.ref(Node())
gc.collect()
print(staying() is not None, later() is None)
"""


def test_later_collections_leave_out_what_was_first_loaded_to_stay():
    alone = (sys.executable, "-c", PROGRAM)  # it changes the collector of its process
    ran = subprocess.run(alone, check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"]
