"""`python -m diffuspec` is the `diffuspec` command."""

from diffuspec.cli import main

if __name__ == "__main__":
    main()
