"""The demo: SmolLM2 writes through a token graph, and the proof beside it that the text is the model's own.

python examples/demo.py
"""

from __future__ import annotations

from rich.table import Table

import draftgraph as dg
from draftgraph.audit import as_chat, audit
from draftgraph.cli import console
from draftgraph.engine.trace import Tracer

MODEL = "smollm2-135m"
QUESTION = "Write a Python function that returns the n-th Fibonacci number, with a docstring."
AUDITED = (
    QUESTION,
    "Why is the sky blue?",
    "Make a table of three European countries with their capitals and languages.",
)
MAX_TOKENS = 128


def main() -> None:
    with console.DownloadBar() as bar:
        llm = dg.load(MODEL, budget=8, progress=bar.update)
    with llm:
        console.out.print(f"[bold]{llm.name}[/bold] answers; each word is coloured by who proposed it:\n")
        console.out.print(console.legend(["ngram", "recycle", "suffix"]), "\n")
        stream = llm.stream(as_chat(QUESTION), max_tokens=MAX_TOKENS)
        tracer = Tracer(llm.model.tokenizer.token_bytes)
        for delta in stream:
            for piece, sources in tracer.pieces(delta):
                console.print_text(piece, sources[0])
        graph = stream.finish()
        plain = llm.generate(as_chat(QUESTION), budget=0, max_tokens=MAX_TOKENS)

        console.out.print("\n")
        table = Table("", "plain", "graph", box=None, title="the same text, in fewer passes", title_justify="left")
        rows = {
            "tokens": (plain.completion_tokens, graph.completion_tokens),
            "target passes": (plain.stats.target_passes, graph.stats.target_passes),
            "tokens per step": (f"{plain.stats.tokens_per_step:.2f}", f"{graph.stats.tokens_per_step:.2f}"),
        }
        for name, values in rows.items():
            table.add_row(name, *map(str, values))
        console.out.print(table, "")

        for temperature in (0.0, 0.8):
            prompts = [(f"prompt {i}", as_chat(text)) for i, text in enumerate(AUDITED, start=1)]
            result = audit(llm, prompts, lambda _: None, max_tokens=48, temperature=temperature, seed=7)
            console.out.print(
                f"audit at temperature {temperature:g}: {result.prompts} prompts, {result.tokens} tokens, "
                f"{len(result.mismatches)} mismatches"
            )


if __name__ == "__main__":
    main()
