"""Bad input of every kind: exit code 2, three parts that fit one screen, one line of JSON if asked, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgraph import environment
from draftgraph.errors import PromptError
from support.commands import Outcome, command, error_of, program, refusal, unchanged
from support.rigs import write_text
from support.tiny import tiny_config, tiny_tokenizer, write_gguf, write_hf_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the cases below name."""
    folder = tmp_path_factory.mktemp("bad")
    write_gguf(folder / "good.gguf")
    write_gguf(
        folder / "other.gguf", extra_metadata={"tokenizer.ggml.tokens": [*tiny_tokenizer().tokens[:-1], "<|fin|>"]}
    )
    write_gguf(folder / "odd.gguf", "mystery")
    write_gguf(
        folder / "named.gguf",
        drop_metadata=["tokenizer.chat_template"],
        extra_metadata={"tokenizer.chat_template.rag": "x"},
    )
    write_gguf(folder / "rude.gguf", extra_metadata={"tokenizer.chat_template": "{{ raise_exception('no ' * 4000) }}"})
    write_gguf(folder / "words.gguf", drop_metadata=["tokenizer.ggml.merges"])
    few_rows = tiny_config(vocab_rows=len(tiny_tokenizer().tokens) - 7)
    write_gguf(folder / "few.gguf", config=few_rows)
    write_hf_folder(folder / "few", config=few_rows)
    write_hf_folder(folder / "missing", drop_tensors=["model.norm.weight"])
    whole = (folder / "good.gguf").read_bytes()
    cuts = {str(length): length for length in (0, 3, 11, 40, 400, 6000)}
    for name, length in {**cuts, "half": len(whole) // 2, "last": len(whole) - 1}.items():
        (folder / f"cut{name}.gguf").write_bytes(whole[:length])
    (folder / "magic.gguf").write_bytes(b"NOPE" + whole[4:])
    (folder / "counts.gguf").write_bytes(whole[:8] + b"\xff" * 8 + whole[16:])
    (folder / "version.gguf").write_bytes(whole[:4] + b"\x63\0\0\0" + whole[8:])
    kind = whole.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8  # after one dimension
    (folder / "type.gguf").write_bytes(whole[:kind] + b"\xf7\x03\0\0" + whole[kind + 4 :])
    key = whole.index(b"llama.block_count") + len(b"llama.block_count")
    (folder / "value.gguf").write_bytes(whole[:key] + b"\x63\0\0\0" + whole[key + 4 :])
    write_text(folder / "prompts.jsonl", '{"turns": ["hello"]}\n')
    write_text(folder / "broken.jsonl", '{"turns": ["hello"]}\n{"turns": [\n')
    write_text(folder / "turnless.jsonl", '{"prompt": "hello"}\n')
    write_text(folder / "turn_type.jsonl", '{"turns": [1]}\n')
    write_text(folder / "deep.jsonl", '{"turns": ' + "[" * 100_000 + "\n")
    write_text(folder / "blank.txt", "\n \n")
    write_text(folder / "long.txt", "many words " * 400)
    write_text(folder / "broken.jinja", "{% for message in messages %}")
    write_text(folder / "large.jinja", " " * 2**20)
    (folder / "latin.txt").write_bytes("déjà vu\n".encode("latin-1"))
    (folder / "folder.svg").mkdir()
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


SAY = ("-p", "hello", "--max-tokens", "4")
# arguments -> the type of the error, and a word that its message must have
CASES = {
    # model files
    "a model file of no bytes": (("generate", "cut0.gguf", *SAY), "ModelFileError", "GGUF"),
    "a model file of three bytes": (("generate", "cut3.gguf", *SAY), "ModelFileError", "GGUF"),
    "a model file cut in the header": (("generate", "cut11.gguf", *SAY), "ModelFileError", "cut11.gguf"),
    "a model file cut in the first key": (("generate", "cut40.gguf", *SAY), "ModelFileError", "download"),
    "a model file cut in the metadata": (("generate", "cut400.gguf", *SAY), "ModelFileError", "376 more"),
    "a model file cut in the merges": (("generate", "cut6000.gguf", *SAY), "ModelFileError", "cut6000.gguf"),
    "a model file cut in the middle": (("generate", "cuthalf.gguf", *SAY), "ModelFileError", "bytes"),
    "a model file without its last byte": (("generate", "cutlast.gguf", *SAY), "ModelFileError", "bytes"),
    "a file that is no GGUF file": (("generate", "magic.gguf", *SAY), "ModelFileError", "NOPE"),
    "a count of tensors beyond the file": (("generate", "counts.gguf", *SAY), "ModelFileError", "counts"),
    "an unknown version": (("generate", "version.gguf", *SAY), "UnsupportedModelError", "99"),
    "an unknown type of value": (("generate", "value.gguf", *SAY), "ModelFileError", "block_count"),
    "an unknown quantisation": (("generate", "type.gguf", *SAY), "UnsupportedModelError", "1015"),
    "an unknown architecture": (("generate", "odd.gguf", *SAY), "UnsupportedModelError", "mystery"),
    "more tokens than rows": (("generate", "few.gguf", *SAY), "ModelFileError", "rows"),
    "more tokens than rows in a folder": (("generate", "few", *SAY), "ModelFileError", "rows"),
    "a folder without a tensor": (("generate", "missing", *SAY), "ModelFileError", "norm"),
    "a tokenizer without merges": (("generate", "words.gguf", *SAY), "TokenizerError", "merges"),
    # what is not there
    "a model file that is missing": (("generate", "no.gguf", *SAY), "ModelNotFoundError", "no.gguf"),
    "a model misspelt": (("generate", "smollm2-135n", *SAY), "ModelNotFoundError", "smollm2-135m"),
    "a model folder without a model": (("generate", "folder.svg", *SAY), "ModelNotFoundError", "config.json"),
    "a model that is a text": (("generate", "long.txt", *SAY), "ModelNotFoundError", "long.txt"),
    "a prompt file that is missing": (("generate", "good.gguf", "-f", "no.txt"), "DataFileError", "no.txt"),
    "a prompt file that is a folder": (("generate", "good.gguf", "-f", "few"), "DataFileError", "few"),
    "a prompt file in Latin-1": (("generate", "good.gguf", "-f", "latin.txt"), "DataFileError", "UTF-8"),
    "a data file that is missing": (("audit", "good.gguf", "--data", "no.jsonl"), "DataFileError", "no.jsonl"),
    "a corpus that is missing": (("generate", "good.gguf", *SAY, "--corpus", "no.txt"), "DataFileError", "no.txt"),
    "a corpus in Latin-1": (("generate", "good.gguf", *SAY, "--corpus", "latin.txt"), "DataFileError", "UTF-8"),
    "a draft model that is missing": (
        ("generate", "good.gguf", *SAY, "--draft", "model:no.gguf"), "ModelNotFoundError", "no.gguf",
    ),
    "a model to pull that is missing": (("pull", "no.gguf"), "ModelNotFoundError", "no.gguf"),
    # data files
    "a data file in Latin-1": (("bench", "good.gguf", "--data", "latin.txt"), "DataFileError", "UTF-8"),
    "a data file of broken JSON": (("audit", "good.gguf", "--data", "broken.jsonl"), "DataFileError", "line 2"),
    "a data file without turns": (("audit", "good.gguf", "--data", "turnless.jsonl"), "DataFileError", "turns"),
    "a turn that is a number": (("audit", "good.gguf", "--data", "turn_type.jsonl"), "DataFileError", "turns"),
    "a data file nested too deep": (("audit", "good.gguf", "--data", "deep.jsonl"), "DataFileError", "JSON"),
    "a data file of blank lines": (("audit", "good.gguf", "--data", "blank.txt"), "DataFileError", "no prompts"),
    # prompts
    "no prompt": (("generate", "good.gguf"), "ParameterError", "neither"),
    "two prompts": (("generate", "good.gguf", *SAY, "-f", "long.txt"), "ParameterError", "both -p and -f"),
    "an empty prompt and a file": (("generate", "good.gguf", "-p", "", "-f", "long.txt"), "ParameterError", "both -p"),
    "an empty raw prompt": (("generate", "good.gguf", "-p", "", "--raw"), "PromptError", "empty"),
    "a prompt beyond the context": (("generate", "good.gguf", "-f", "long.txt"), "PromptError", "255"),
    "a context that the prompt fills": (
        ("generate", "good.gguf", "-p", "abcdef", "--raw", "--context", "6"), "PromptError", "5",
    ),
    "a chat with a model without a default template": (("chat", "named.gguf"), "ChatTemplateError", "rag"),
    "a chat template that is missing": (
        ("generate", "good.gguf", *SAY, "--chat-template", "no.jinja"), "ChatTemplateError", "chatml",
    ),
    "a chat template in Latin-1": (
        ("generate", "good.gguf", *SAY, "--chat-template", "latin.txt"), "ChatTemplateError", "UTF-8",
    ),
    "a chat template that is a folder": (
        ("generate", "good.gguf", *SAY, "--chat-template", "few"), "ChatTemplateError", "not a file",
    ),
    "a chat template that is too large": (
        ("generate", "good.gguf", *SAY, "--chat-template", "large.jinja"), "ChatTemplateError", "too large",
    ),
    "a chat template that is no template": (
        ("generate", "good.gguf", *SAY, "--chat-template", "broken.jinja"), "ChatTemplateError", "endfor",
    ),
    "a template that refuses at length": (("generate", "rude.gguf", *SAY), "ChatTemplateError", "no no"),
    # options
    "a temperature of nan": (("generate", "good.gguf", *SAY, "--temperature", "nan"), "ParameterError", "nan"),
    "an infinite temperature": (("generate", "good.gguf", *SAY, "--temperature", "inf"), "ParameterError", "inf"),
    "a negative temperature": (("generate", "good.gguf", *SAY, "--temperature", "-1"), "ParameterError", "-1"),
    "a top_p of nothing": (("generate", "good.gguf", *SAY, "--top-p", "0"), "ParameterError", "above 0"),
    "a min_p above one": (("generate", "good.gguf", *SAY, "--min-p", "1.5"), "ParameterError", "0 to 1"),
    "a negative seed": (("generate", "good.gguf", *SAY, "--seed", "-1"), "ParameterError", "seed"),
    "no tokens to write": (("generate", "good.gguf", "-p", "x", "--max-tokens", "0"), "ParameterError", "max_tokens"),
    "an empty stop string": (("generate", "good.gguf", *SAY, "--stop", ""), "ParameterError", "stop"),
    "a bias that is no pair": (("generate", "good.gguf", *SAY, "--logit-bias", "x"), "ParameterError", "42=-5"),
    "a bias without a number": (("generate", "good.gguf", *SAY, "--logit-bias", "1="), "ParameterError", "42=-5"),
    "a bias that is no number": (("generate", "good.gguf", *SAY, "--logit-bias", "1=nan"), "ParameterError", "nan"),
    "a bias of a negative token": (("generate", "good.gguf", *SAY, "--logit-bias", "-1=1"), "ParameterError", "-1"),
    "a bias beyond the vocabulary": (("generate", "good.gguf", *SAY, "--logit-bias", "299=1"), "ParameterError", "298"),
    "a budget beyond the most": (("generate", "good.gguf", *SAY, "--budget", "513"), "ParameterError", "512"),
    "no threads": (("generate", "good.gguf", *SAY, "--threads", "0"), "ParameterError", "threads"),
    "an unknown acceptance": (("generate", "good.gguf", *SAY, "--acceptance", "maybe"), "ParameterError", "residual"),
    "an unknown runner": (("generate", "good.gguf", *SAY, "--runner", "abacus"), "ParameterError", "native"),
    "an unknown memory": (("generate", "good.gguf", *SAY, "--memory", "elephant"), "ParameterError", "process"),
    "a context beyond the model's": (("generate", "good.gguf", *SAY, "--context", "257"), "ParameterError", "256"),
    "an unknown drafter": (("generate", "good.gguf", *SAY, "--draft", "oracle"), "ParameterError", "suffix"),
    "a drafter with a name without end": (
        ("generate", "good.gguf", *SAY, "--draft", "oracle" * 2000), "ParameterError", "suffix",
    ),
    "a draft model without a name": (("generate", "good.gguf", *SAY, "--draft", "model:"), "ParameterError", "MODEL"),
    "a drafter with an argument": (("generate", "good.gguf", *SAY, "--draft", "ngram:3"), "ParameterError", ":3"),
    "a drafter twice": (("generate", "good.gguf", *SAY, "--draft", "ngram,ngram"), "ParameterError", "once"),
    "off with a drafter": (("generate", "good.gguf", *SAY, "--draft", "off,ngram"), "ParameterError", "off"),
    "a draft model with other words whose draws count": (
        ("generate", "good.gguf", *SAY, "--draft", "model:other.gguf", "--acceptance", "residual"),
        "VocabularyMismatchError", "other.gguf",
    ),
    "an audit of a text that may differ": (
        ("audit", "good.gguf", "--data", "prompts.jsonl", "--acceptance", "residual", "--temperature", "1"),
        "ParameterError", "match",
    ),
    # pictures
    "a picture of an unknown kind": (("graph", "good.gguf", *SAY, "--out", "new.png"), "ParameterError", ".svg"),
    "a picture in a missing folder": (("graph", "good.gguf", *SAY, "--out", "no/new.svg"), "ParameterError", "folder"),
    "a picture in place of a folder": (("graph", "good.gguf", *SAY, "--out", "folder.svg"), "ParameterError", "folder"),
    "a picture with a name too long": (
        ("graph", "good.gguf", *SAY, "--out", "x" * 300 + ".svg"), "ParameterError", "--out",
    ),
    "a step beyond the last": (
        ("graph", "good.gguf", *SAY, "--out", "new.svg", "--step", "99"), "ParameterError", "--step 99",
    ),
    "a picture of a text of one token": (
        ("graph", "good.gguf", "-p", "x", "--max-tokens", "1", "--out", "new.svg"), "PromptError", "--max-tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "word"), CASES.values(), ids=CASES)
def test_a_typed_error_says_what_was_given_what_is_allowed_and_what_to_do(
    arguments: tuple[str, ...], kind: str, word: str, folder: Path
) -> None:
    with unchanged(folder):
        outcome = command(*arguments, stdin="hello\n")
    message = refusal(outcome)
    assert kind in message
    assert word in message
    assert outcome.out == ""


@pytest.mark.parametrize(("arguments", "kind", "word"), CASES.values(), ids=CASES)
def test_with_json_the_error_is_the_one_line_on_stdout(
    arguments: tuple[str, ...], kind: str, word: str, folder: Path
) -> None:
    with unchanged(folder):
        outcome = command(*arguments, "--json", stdin="hello\n")
    refusal(outcome)
    error = error_of(outcome)
    assert error["type"] == kind
    assert word in " ".join(error.values())


PARSED = {
    "an unknown option": ("generate", "good.gguf", *SAY, "--speed", "9"),
    "an option without its value": ("generate", "good.gguf", "-p"),
    "no model": ("generate",),
    "a model too many": ("generate", "good.gguf", "good.gguf", *SAY),
    "a temperature in words": ("generate", "good.gguf", *SAY, "--temperature", "warm"),
    "half a token": ("generate", "good.gguf", "-p", "x", "--max-tokens", "0.5"),
    "an audit without data": ("audit", "good.gguf"),
    "an audit of no prompts": ("audit", "good.gguf", "--data", "prompts.jsonl", "--limit", "0"),
    "a picture without a name": ("graph", "good.gguf", *SAY),
    "a step before the first": ("graph", "good.gguf", *SAY, "--out", "new.svg", "--step", "0"),
    "an unknown command": ("sing", "good.gguf"),
}


@pytest.mark.parametrize("arguments", PARSED.values(), ids=PARSED)
def test_the_parser_shows_the_usage_for_options_that_it_cannot_read(arguments: tuple[str, ...], folder: Path) -> None:
    with unchanged(folder):
        outcome = command(*arguments)
    refusal(outcome, parser=True)
    assert outcome.out == ""


@pytest.mark.parametrize("arguments", PARSED.values(), ids=PARSED)
def test_options_that_cannot_be_read_end_with_one_line_of_json_too(arguments: tuple[str, ...]) -> None:
    outcome = command(arguments[0], "--json", *arguments[1:])
    refusal(outcome, parser=True)
    assert error_of(outcome)["type"] == "ParameterError"


def test_offline_with_nothing_in_the_cache_says_where_the_file_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv(environment.OFFLINE, "1")
    for arguments in (("generate", "smollm2-135m", *SAY), ("pull", "smollm2-135m")):
        outcome = command(*arguments, "--json")
        refusal(outcome)
        error = error_of(outcome)
        assert error["type"] == "DownloadError"
        assert f"unset {environment.OFFLINE}" in error["remedy"]
        assert str(tmp_path / "cache") in error["remedy"]
    assert not (tmp_path / "cache").exists()


def test_a_picture_that_is_refused_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    old = write_text(tmp_path / "old.svg", "an old picture")
    refusal(command("graph", "good.gguf", *SAY, "--out", old, "--step", "99"))
    refusal(command("graph", "cuthalf.gguf", *SAY, "--out", old))
    assert old.read_text() == "an old picture"


def test_a_chat_that_outgrows_the_context_ends_and_keeps_what_was_said() -> None:
    outcome = command(
        "chat", "good.gguf", "--max-tokens", "4", "--json", stdin="hello\n" + "many words " * 100 + "\nmore\n"
    )
    assert outcome.code == 0
    assert PromptError.__name__ in outcome.err
    assert [message["role"] for message in outcome.json["messages"]] == ["user", "assistant"]


# As a program of its own, where bytes are not text yet


def as_a_program(*arguments: str | bytes, stdin: bytes = b"") -> Outcome:
    outcome = program(*arguments, stdin=stdin)
    refusal(outcome)
    error_of(outcome)
    return outcome


def test_a_broken_model_is_refused_by_the_program() -> None:
    assert error_of(as_a_program("generate", "cuthalf.gguf", *SAY, "--json"))["type"] == "ModelFileError"


def test_stdin_that_is_not_text_is_refused() -> None:
    outcome = as_a_program("generate", "good.gguf", "-f", "-", "--json", stdin=b"\xff\xfe")
    assert error_of(outcome)["type"] == "DataFileError"
    outcome = as_a_program("chat", "good.gguf", "--json", stdin=b"\xff\xfe\n")
    assert error_of(outcome)["type"] == "DataFileError"


def test_arguments_that_are_not_text_are_refused() -> None:
    assert error_of(as_a_program("generate", b"\xff.gguf", *SAY, "--json"))["type"] == "ModelNotFoundError"
    assert error_of(as_a_program("generate", "good.gguf", "-p", b"\xff", "--json"))["type"] == "PromptError"


# The checks above are held up to faults


@pytest.mark.parametrize(
    "fault",
    [
        Outcome(1, "", "given allowed do this"),
        Outcome(2, "", ""),
        Outcome(2, "", "given allowed"),
        Outcome(2, "", "Traceback (most recent call last): given allowed do this"),
        Outcome(2, "", "given allowed do this" + "\n" * 30),
    ],
    ids=["exit code", "silence", "two parts", "traceback", "two screens"],
)
def test_a_careless_refusal_is_caught(fault: Outcome) -> None:
    with pytest.raises(AssertionError):
        refusal(fault)


@pytest.mark.parametrize("out", ["", "text\n{}", "{}", '{"error": {"type": "E"}}', '{"error": 1, "text": ""}'])
def test_a_careless_error_object_is_caught(out: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        error_of(Outcome(2, out, ""))


def test_a_file_left_behind_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="left behind"), unchanged(tmp_path):
        write_text(tmp_path / "half.svg", "<svg")
