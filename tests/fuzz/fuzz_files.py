"""Breaks model files at random and loads them: each must load and write, or be refused with a typed error.

In: how many, a seed. Out: one screen of what happened, and exit code 1 with every fault: any other error, a crash, more
than ten seconds or too much memory. Loads run in child processes; `--case N` runs one again, with its traceback. Run it
with `make fuzz-files`, or `PYTHONPATH=tests python -m fuzz.fuzz_files`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import draftgraph as dg
from draftgraph.extension import core
from fuzz.mutations import mutate_folder, mutate_gguf
from support.tiny import CHAT_TEMPLATE, tiny_config, write_gguf, write_hf_folder, write_json
from support.vocabularies import byte_level_json, sentencepiece_json, sentencepiece_metadata

SECONDS = 10
_MEMORY = 2**29  # beyond what a sound model took
_BATCH = 250  # loads of one child process
RUNNERS = ("native", "reference") if core is not None else ("reference",)
CHILD = [sys.executable, "-m", "fuzz.fuzz_files"]  # what runs one batch
_CHAT = [{"role": "user", "content": "Say hi"}]


def write_models(folder: Path) -> None:
    """Writes the sound models, each in a folder of its own."""
    for name in ("llama", "qwen2", "qwen3", "gemma3"):
        (folder / name).mkdir()
        write_gguf(folder / name / "model.gguf", name)
    for quant in ("Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "Q4_K", "Q6_K", "Q5_K"):
        (folder / quant).mkdir()
        sizes = (
            {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_layers": 1}
            if quant.endswith("K")
            else {}
        )
        write_gguf(folder / quant / "model.gguf", quant=quant, config=tiny_config(**sizes))
    words = sentencepiece_metadata()
    rows = {"vocab_rows": len(words["tokenizer.ggml.tokens"])}
    (folder / "sentencepiece").mkdir()
    byte_level = ["tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id"]
    write_gguf(
        folder / "sentencepiece" / "model.gguf",
        config=tiny_config(**rows),
        extra_metadata=words,
        drop_metadata=byte_level,
    )
    (folder / "split").mkdir()
    write_gguf(folder / "split" / "model.gguf", max_tensors_in_part=8)
    for name in ("llama", "mistral", "qwen2", "qwen3", "gemma3"):
        write_hf_folder(folder / f"{name}-folder", name, dtype="BF16")
    write_hf_folder(folder / "shards-folder", num_shards=3, tied=False)
    write_hf_folder(folder / "half-folder", dtype="F16")
    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    named = [{"name": name, "template": CHAT_TEMPLATE} for name in ("default", "tool_use")]
    for name, spec in (("words", byte_level_json()), ("pieces", sentencepiece_json([]))):
        rows = {"vocab_rows": 1 + max(token["id"] for token in spec["added_tokens"]) + len(spec["model"]["vocab"])}
        path = folder / f"{name}-folder"
        write_hf_folder(path, config=tiny_config(**rows), extra_config={"rope_scaling": llama3, "eos_token_id": 1})
        write_json(path / "tokenizer.json", spec)
        write_json(path / "tokenizer_config.json", {"chat_template": named, "add_bos_token": False})
        write_json(path / "generation_config.json", {"eos_token_id": [1, 2]})


@dataclass(frozen=True)
class Case:
    """One broken model: everything about it follows from the seed and its number."""

    seed: int
    number: int

    def write(self, models: Path, folder: Path) -> tuple[Path, dict[str, Any], str]:
        """Writes the broken model. Returns its path, options to load it with, and words for what is broken."""
        rng = random.Random(f"{self.seed} {self.number}")
        sound = rng.choice(sorted(models.iterdir()))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        if sound.name.endswith("-folder"):
            options = {"quantize": rng.choice(("off", "off", "off", "q8_0", "q4_k"))}
            return folder, options, f"{sound.name}, {mutate_folder(rng, folder)}"
        files = sorted(folder.iterdir())
        what = mutate_gguf(rng, files)
        return files[0], {}, f"{sound.name}, {what}"


def attempt(path: Path, options: dict[str, Any]) -> str:
    """Loads a model and writes two tokens in a chat and after a raw prompt; returns "loaded" or a typed error."""
    try:
        with dg.load(path, draft="ngram", budget=2, slots=1, threads=1, **options) as llm:
            llm.generate("abc", max_tokens=2)
            llm.generate(_CHAT, max_tokens=2)
    except dg.DraftGraphError as error:
        return type(error).__name__
    return "loaded"


def run_child(models: Path, seed: int, numbers: range) -> None:
    """Runs some cases, and says on stdout what each will be and what came of it, one JSON line at a time."""
    warnings.simplefilter("ignore")
    for sound in sorted(models.iterdir()):
        path = sound if sound.name.endswith("-folder") else min(sound.iterdir())
        for runner in RUNNERS:
            assert attempt(path, {"runner": runner}) == "loaded", sound
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = 1024 * int(re.search(r"VmSize:\s+(\d+)", status)[1])  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, -1))
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            path, options, what = Case(seed, number).write(models, Path(folder) / "model")
            for runner in RUNNERS:
                _say(case=number, runner=runner, what=what)
                start = time.monotonic()
                signal.setitimer(signal.ITIMER_REAL, SECONDS)  # ends this process, whatever it does
                try:
                    outcome = attempt(path, options | {"runner": runner})
                except BaseException as error:
                    outcome = f"untyped {type(error).__name__}: {error}"[:300]
                    _say(trace=traceback.format_exc()[-1500:])
                signal.setitimer(signal.ITIMER_REAL, 0)
                _say(outcome=outcome, seconds=time.monotonic() - start)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


@dataclass
class Findings:
    """What came of all cases."""

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    by_runner: dict[int, set[str]] = field(default_factory=dict)
    slowest: tuple[float, str] = (0.0, "")
    faults: list[str] = field(default_factory=list)

    def note(self, begun: dict[str, Any], outcome: str, seconds: float, trace: str = "") -> None:
        what = f"--seed {self.seed} --case {begun['case']}, {begun['runner']}: {begun['what']}"
        self.outcomes[outcome.partition(":")[0]] += 1
        self.by_runner.setdefault(begun["case"], set()).add(outcome)
        self.slowest = max(self.slowest, (seconds, what))
        if outcome.startswith("untyped"):
            self.faults.append(f"{what}\n  {outcome}\n{trace}")

    def print(self, seconds: float) -> None:
        """Prints one screen."""
        for fault in self.faults[:12]:
            print(fault)
        models, loads = len(self.by_runner), sum(self.outcomes.values())
        print(f"seed {self.seed}: {models} broken models, {loads} loads, {seconds:.0f} s")
        for outcome, count in self.outcomes.most_common():
            print(f"  {count:7} {outcome}")
        split = sum(len(outcomes) > 1 for outcomes in self.by_runner.values())
        print(f"  {split:7} of which the two runners judge differently")
        print(f"slowest: {self.slowest[0]:.2f} s, {self.slowest[1]:.200}")
        print(f"{len(self.faults)} faults")


def search(count: int, seed: int, minutes: float) -> Findings:
    """Runs `count` cases, or as many as fit the time."""
    findings, end = Findings(seed), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        number = 0
        while number < count and time.monotonic() < end:
            number = run_batch(findings, Path(folder), range(number, min(number + _BATCH, count)))
    return findings


def run_batch(findings: Findings, models: Path, numbers: range) -> int:
    """Runs some cases in a child; returns the number of the case to go on with."""
    arguments = ["--child", str(models), "--seed", str(findings.seed), "--first", str(numbers.start)]
    command = [*CHILD, *arguments, "--count", str(len(numbers))]
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as child:
            assert child.stdout is not None, "it is a pipe"
            begun = _listen(findings, child.stdout)
        complaints.seek(0)
        complaint = complaints.read()
    if child.returncode == 0:
        return numbers.stop
    if begun is None:
        raise RuntimeError(f"the search itself failed: {complaint[-3000:]}")
    ending = "untyped hang" if child.returncode == -signal.SIGALRM else f"untyped end, status {child.returncode}"
    findings.note(begun, ending, float(SECONDS), complaint[-1500:])
    return int(begun["case"]) + 1


def _listen(findings: Findings, lines: Iterable[str]) -> dict[str, Any] | None:
    """Notes what a child says; returns what it had begun when it ended."""
    begun, trace = None, ""
    for line in lines:
        said = json.loads(line)
        if "case" in said:
            begun = said
        elif "trace" in said:
            trace = said["trace"]
        else:
            assert begun is not None, "an outcome follows a beginning"
            findings.note(begun, said["outcome"], said["seconds"], trace)
            begun, trace = None, ""
    return begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="broken models")
    parser.add_argument("--seed", type=int, default=None, help="the same seed breaks the same files")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--case", type=int, default=None, help="run only this one, here")
    parser.add_argument("--child", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.child is not None:
        run_child(options.child, seed, range(options.first, options.first + options.count))
        return
    print(f"seed {seed}", flush=True)
    if options.case is not None:
        _run_here(Case(seed, options.case))
        return
    start = time.monotonic()
    findings = search(options.count, seed, options.minutes)
    findings.print(time.monotonic() - start)
    sys.exit(bool(findings.faults))


def _run_here(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (models := Path(folder) / "models").mkdir()
        write_models(models)
        path, options, what = case.write(models, Path(folder) / "model")
        print(what)
        for runner in RUNNERS:
            with dg.load(path, draft="ngram", budget=2, slots=1, threads=1, runner=runner, **options) as llm:
                print(llm.generate("abc", max_tokens=2).text, llm.generate(_CHAT, max_tokens=2).text)


if __name__ == "__main__":
    main()
