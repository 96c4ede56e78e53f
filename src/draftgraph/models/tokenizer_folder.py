"""The tokenizer of a Hugging Face folder.

In: a folder with `tokenizer.json`, and `tokenizer_config.json` and chat template files where there are any. Out:
`TokenizerParts`. Normaliser and splitter are the file's own; literals, begin tokens and text are ours, so what cannot
be honoured is a `TokenizerError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from tokenizers import models

from draftgraph.errors import TokenizerError
from draftgraph.models.byte_pairs import Encoder, TokenizerParts, check_merges, without_panic
from draftgraph.models.chat_templates import DEFAULT
from draftgraph.models.token_table import BYTE_TOKEN, METASPACE, Kind, Literal, check_lengths, is_hidden, make_table
from draftgraph.models.tokenizer_steps import check_steps

_REMEDY = "fetch the model again, or use a model with a byte-pair tokenizer"
_MAX_ID = 2**20
_MAX_HOLES = 2**16  # ids that no token has; each takes room
_MAX_BYTES = 2**28  # of a file
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")
_METASPACE_STEPS = ("Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")


def read_folder(path: Path) -> TokenizerParts:
    """Returns the parts of the tokenizer in the folder `path`.

    NOTE: control tokens match as written, also where the file says `normalized`; and an end token that the file would
    append to every text is not appended, because a prompt is there to be continued.

    Raises:
        TokenizerError: a file is missing, broken or contradicts itself, or the kind is not supported.
    """
    spec = _read_json(path / "tokenizer.json")
    config = _read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
    model = _check_model(spec.get("model"))
    added = _added_tokens(spec.get("added_tokens", []))
    labels = _labels(model["vocab"], added)
    ids = {label: token_id for token_id, label in enumerate(labels)}
    bos_id, eos_id = (_config_id(config, key, ids) for key in ("bos_token", "eos_token"))
    kinds = _kinds(labels, model, added, {bos_id, eos_id})
    encoder = _encoder(spec, model, kinds)
    raw, normalized = _literals(added, kinds, encoder)
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        add_bos = bos_id is not None and _begins_with(spec.get("post_processor"), labels[bos_id])
    if not isinstance(add_bos, bool) or (add_bos and bos_id is None):
        given = f"add_bos_token={add_bos!r:.80} with bos_token={config.get('bos_token')!r:.80}"
        _refuse(given, "false, or true with a bos_token")
    return TokenizerParts(
        table=make_table(labels, kinds, byte_level=_is_byte_level(spec.get("decoder"))),
        encoder=encoder,
        literals=raw,
        normalized_literals=normalized,
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=add_bos,
        chat_templates=_templates(path, config),
    )


def _check_model(model: Any) -> dict[str, Any]:
    """Returns the `model` section after the checks that the library would answer with a panic or with silence."""
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        _refuse(f"the model type {model.get('type')!r:.80}" if isinstance(model, dict) else "no model", "BPE")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not isinstance(model.get("merges"), list):
        _refuse("a model without vocab or merges", "an object of tokens and a list of merges")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            _refuse(f"{name}={model[name]!r:.80}", f"no {name}")
    for name in ("ignore_merges", "byte_fallback", "fuse_unk"):
        if not isinstance(model.get(name) or False, bool):
            _refuse(f"{name}={model[name]!r:.80}", "true or false")
    unknown = model.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        _refuse(f"unk_token={unknown!r:.80}", "a token of the vocabulary")
    return model


def _added_tokens(tokens: Any) -> list[dict[str, Any]]:
    """Returns the added tokens with all flags set."""
    if not isinstance(tokens, list):
        _refuse(f"added_tokens={tokens!r:.80}", "a list")
    added = []
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not _is_id(token.get("id")):
            _refuse(f"the added token {token!r:.200}", f"an object with content and an id from 0 to {_MAX_ID - 1}")
        full = {**dict.fromkeys(_FLAGS, False), **token}
        for flag in _FLAGS:
            if not isinstance(full[flag], bool):
                _refuse(f"{flag}={full[flag]!r:.80} of the added token {token['content']!r}", "true or false")
        if full["single_word"]:
            _refuse(f"single_word of the added token {token['content']!r}", "added tokens that match anywhere")
        added.append(full)
    return added


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_ID


def _labels(vocab: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns [size] every id's token. An id that no token has gets a label that is no token."""
    found: dict[int, str] = {}
    pairs = [*vocab.items(), *((token["content"], token["id"]) for token in added)]
    check_lengths(label for label, _ in pairs)
    ids: dict[str, int] = {}
    for label, token_id in pairs:
        if not _is_id(token_id):
            _refuse(f"token {label!r} has the id {token_id!r:.80}", f"ids from 0 to {_MAX_ID - 1}")
        if found.setdefault(token_id, label) != label:
            _refuse(f"tokens {found[token_id]!r} and {label!r} both have the id {token_id}", "one token for an id")
        if ids.setdefault(label, token_id) != token_id:
            _refuse(f"token {label!r} has the ids {ids[label]} and {token_id}", "one id for a token")
    if not found:
        _refuse("an empty vocabulary", "at least one token")
    if max(found) >= len(found) + _MAX_HOLES:
        _refuse(f"{len(found)} tokens with ids up to {max(found)}", f"at most {_MAX_HOLES} ids without a token")
    return [found.get(token_id, f"[unused {token_id}]") for token_id in range(max(found) + 1)]


def _kinds(
    labels: Sequence[str], model: Mapping[str, Any], added: Sequence[Mapping[str, Any]], ends: set[int | None]
) -> list[Kind]:
    """Returns [size] what each token is for. Added tokens that begin or end a text are control tokens in any case."""
    vocab, byte_fallback = model["vocab"], model.get("byte_fallback")
    kinds = [Kind.NORMAL if label in vocab else Kind.UNUSED for label in labels]
    if byte_fallback:
        kinds = [Kind.BYTE if BYTE_TOKEN.fullmatch(label) else kind for label, kind in zip(labels, kinds, strict=True)]
    for token in added:
        kinds[token["id"]] = Kind.CONTROL if token["special"] or token["id"] in ends else Kind.USER_DEFINED
    if model.get("unk_token") is not None:
        kinds[vocab[model["unk_token"]]] = Kind.UNKNOWN
    return kinds


def _encoder(spec: Mapping[str, Any], model: Mapping[str, Any], kinds: Sequence[Kind]) -> Encoder:
    unknown = model.get("unk_token")
    vocab = {label: i for label, i in model["vocab"].items() if not is_hidden(kinds[i]) or label == unknown}
    dropped = frozenset(label for label, i in model["vocab"].items() if is_hidden(kinds[i]))
    merges = check_merges(model["merges"], vocab, dropped)
    options = {name: bool(model.get(name)) for name in ("ignore_merges", "byte_fallback", "fuse_unk")}
    pair_model = models.BPE(vocab, merges, unk_token=unknown, **options)
    splitter = spec.get("pre_tokenizer")
    check_steps(spec.get("normalizer"), splitter)
    first = _library_tokenizer(spec.get("normalizer"), splitter)
    normalizer = first.normalizer
    inner = _never_prepend(splitter)
    rest = first if inner == splitter else _library_tokenizer(None, inner)
    first.normalizer = None
    first.model = rest.model = pair_model
    return Encoder(normalizer, first, rest)


def _library_tokenizer(normalizer: Any, splitter: Any) -> tokenizers.Tokenizer:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    spec = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": splitter, "model": empty}
    try:
        built: tokenizers.Tokenizer = without_panic(tokenizers.Tokenizer.from_str, json.dumps(spec))
        return built
    except TokenizerError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"tokenizer.json: {error}", "a known normalizer and pre_tokenizer", _REMEDY) from error


def _never_prepend(splitter: Any) -> Any:
    """Returns the splitter for text after a literal, where a space that belongs before the first word is not added."""
    if isinstance(splitter, list):
        return [_never_prepend(step) for step in splitter]
    if not isinstance(splitter, dict):
        return splitter
    changed = {key: _never_prepend(value) for key, value in splitter.items()}
    if splitter.get("type") == "Metaspace" and splitter.get("prepend_scheme") == "first":
        changed["prepend_scheme"] = "never"
    return changed


def _literals(
    added: Sequence[Mapping[str, Any]], kinds: Sequence[Kind], encoder: Encoder
) -> tuple[tuple[Literal, ...], tuple[Literal, ...]]:
    """Returns the literals to find in text as it is, and those to find in normalised text."""
    raw, normalized = [], []
    for token in added:
        text, token_id = token["content"], token["id"]
        if token["normalized"] and encoder.normalizer is not None and kinds[token_id] == Kind.USER_DEFINED:
            text = encoder.normalize(text)
            normalized.append(Literal(text, token_id, token["lstrip"], token["rstrip"]))
        else:
            raw.append(Literal(text, token_id, token["lstrip"], token["rstrip"]))
    return tuple(raw), tuple(normalized)


def _is_byte_level(decoder: Any) -> bool:
    """Returns whether text is in GPT-2's byte alphabet; the other way is SentencePiece's. Refuses all others."""
    steps = decoder.get("decoders") if isinstance(decoder, dict) and decoder.get("type") == "Sequence" else [decoder]
    names = [step.get("type") if isinstance(step, dict) else None for step in steps or [None]]
    if names == ["ByteLevel"]:
        return True
    for step, name in zip(steps or [], names, strict=False):
        pattern = step.get("pattern") if name == "Replace" else {"String": METASPACE}
        content = step.get("content") if name == "Replace" else " "
        if name not in _METASPACE_STEPS or pattern != {"String": METASPACE} or content != " ":
            _refuse(f"the decoder {decoder!r:.200}", "ByteLevel, Metaspace, or Replace with ByteFallback")
    if "Replace" not in names and "Metaspace" not in names:
        _refuse(f"the decoder {decoder!r:.200}", "ByteLevel, Metaspace, or Replace with ByteFallback")
    return False


def _begins_with(post_processor: Any, token: str) -> bool:
    """Returns whether the post-processor puts `token` before a text."""
    if not isinstance(post_processor, dict):
        return False
    if post_processor.get("type") == "Sequence":
        return any(_begins_with(step, token) for step in post_processor.get("processors") or [])
    template = post_processor.get("single")
    if post_processor.get("type") != "TemplateProcessing" or not isinstance(template, list) or not template:
        return False
    first = template[0].get("SpecialToken") if isinstance(template[0], dict) else None
    return isinstance(first, dict) and first.get("id") == token


def _config_id(config: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> int | None:
    token = config.get(key)
    content = token.get("content") if isinstance(token, dict) else token
    if content is None:
        return None
    if not isinstance(content, str) or content not in ids:
        _refuse(f"{key}={token!r:.80} in tokenizer_config.json", "a token of the vocabulary")
    return ids[content]


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chat templates by name: from files of their own where there are any, else from a config.

    As the tokenizers of transformers read them. Its processors know `chat_template.json`, which here comes last.
    """
    files = {file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    if (path / "chat_template.jinja").exists():
        files = {DEFAULT: path / "chat_template.jinja"} | files
    if files:
        return {name: _read_text(file) for name, file in files.items()}
    template, separate = config.get("chat_template"), path / "chat_template.json"
    if template is None and separate.exists():
        template = _read_json(separate).get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        pairs = [(entry.get("name"), entry.get("template")) for entry in template]
    elif isinstance(template, dict):
        pairs = list(template.items())
    else:
        pairs = [] if template is None else [(DEFAULT, template)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        _refuse(f"chat_template={template!r:.80}", 'text, or a list of {"name": TEXT, "template": TEXT}')
    return dict(pairs)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}", "a JSON object", _REMEDY) from error
    if not isinstance(value, dict):
        _refuse(f"{path} holds a {type(value).__name__}", "a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file() or size > _MAX_BYTES:
            raise TokenizerError(f"{path}: no regular file, or of {size} bytes", f"at most {_MAX_BYTES}", _REMEDY)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TokenizerError(f"{path} does not exist", f"a folder with {path.name}", _REMEDY) from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}", "a UTF-8 file", _REMEDY) from error


def _refuse(given: str, allowed: str) -> NoReturn:
    raise TokenizerError(f"tokenizer.json: {given}", allowed, _REMEDY)
