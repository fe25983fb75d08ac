"""`python -m diffuspec` is the `diffuspec` command."""

from diffuspec.cli import main

main()
