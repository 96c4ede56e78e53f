"""The command line: `draftgraph generate | chat | serve | pull | doctor | audit | graph | bench | …`.

It parses, calls and prints; it computes nothing. Bad input ends with the three parts of a typed error and exit code 2.
"""

from __future__ import annotations

import sys

from draftgraph.cli import console
from draftgraph.cli.bench import bench
from draftgraph.cli.commands import app
from draftgraph.cli.measure import perplexity, profile
from draftgraph.cli.plan import plan
from draftgraph.cli.serve import serve
from draftgraph.errors import DraftGraphError, ParameterError

for _command in (serve, bench, plan, profile, perplexity):
    app.command()(_command)


def main() -> None:
    """Runs the command line; the exit code is 0, 1 (texts differ that must not), 2 (bad input) or 130 (interrupted)."""
    try:
        app()
    except DraftGraphError as error:
        console.print_error(error)
        if "--json" in sys.argv:
            console.print_json(console.error_json(error))
        sys.exit(2)
    except SystemExit as end:  # the parser has shown what is wrong with the options
        if end.code == 2 and "--json" in sys.argv:
            usage = ParameterError(" ".join(sys.argv[1:]), "the options that --help lists", "see the message on stderr")
            console.print_json(console.error_json(usage))
        raise
