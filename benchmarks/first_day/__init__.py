"""The first day of a user: what the pages tell readers to type, typed in an empty machine.

    make release
    python -m benchmarks.first_day dist

Every command and every program of the README, the tutorial and the pages about serving and usage is
run as written, first with nothing but the wheel, then in a checkout: in namespaces of their own,
with an empty home, an empty /tmp and no network. A comment before a block in a page's source says
what is not run, and why:

    <!-- needs a GPU -->                              the whole block
    <!-- needs an hour: make test; file mine.yaml --> commands that begin so; the block is that file
"""
