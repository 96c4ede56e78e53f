"""`python -m draftgraph`: the command line."""

from draftgraph.cli import main

main()
