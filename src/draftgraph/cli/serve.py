"""The command `serve`. It imports the server's packages when it runs, so that the other commands need none of them."""

from __future__ import annotations

from draftgraph.cli import console
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.shared import JsonOption, ModelArgument, loaded
from draftgraph.config import DraftConfig, EngineConfig, SamplingParams, ServerConfig
from draftgraph.errors import MissingPackageError


@with_options(ServerConfig, SamplingParams, DraftConfig, EngineConfig)
def serve(*, model: ModelArgument, options: Options, as_json: JsonOption = False) -> None:
    """Answer OpenAI's clients. The sampling options are those of requests that do not give their own."""
    try:
        from draftgraph.server.app import build_app
        from draftgraph.server.logs import log_sparingly
        from draftgraph.server.run import open_socket, url_of
        from draftgraph.server.run import serve as serve_app
        from draftgraph.server.security import check_memory, read_keys
    except ModuleNotFoundError as error:
        if str(error.name).startswith("draftgraph"):
            raise
        raise MissingPackageError(
            f"serve without the package {error.name}", "the server's packages", "pip install 'draftgraph[server]'"
        ) from error
    log_sparingly()
    config = ServerConfig(**options.server)
    SamplingParams(**options.sampling)  # refused now rather than at every request
    keys = read_keys(config)
    check_memory(options.load.get("memory", ""), keys)
    with open_socket(config) as bound, loaded(model, options) as llm:
        server = build_app(llm, config, keys, options.sampling)

        def announce() -> None:
            said = {"url": url_of(bound), "model": llm.name, "slots": llm.runner.num_free_slots, "queue": config.queue}
            if as_json:
                console.print_json(said)
            else:
                text = "{url} serves {model}: {slots} slots, a queue of {queue}; Ctrl-C ends it".format(**said)
                console.out.print(text, markup=False, emoji=False)

        serve_app(server, bound, announce)
