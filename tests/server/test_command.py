"""The command `serve` where it cannot: each time an error in three parts, before a model is loaded."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from draftgraph.doctor import SERVER
from support.commands import Outcome, command, error_of, refusal


@pytest.mark.parametrize("absent", [SERVER, SERVER[2:3]])
def test_without_the_servers_packages_all_but_serve_works_and_serve_says_what_to_install(
    absent: tuple[str, ...],
) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); from draftgraph.cli import main; main()"
    for arguments in (["serve", "no-such-model"], ["doctor", "--json"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        if arguments[0] == "doctor":
            assert json.loads(done.stdout)["runner"]
        else:
            said = refusal(Outcome(done.returncode, done.stdout, done.stderr))
            assert "MissingPackageError" in said
            assert "pip install 'draftgraph[server]'" in said


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refusal(command("serve", "no-such-model", "--port", str(taken.getsockname()[1])))
    assert "in use" in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"), (["--host", "no.such.host.invalid"], "--host"),
        (["--api-key-file", "missing"], "missing"), (["--cors-origin", "*"], "--cors-origin"),
        (["--time-limit", "0"], "time_limit"), (["--queue", "-1"], "queue"), (["--temperature", "-1"], "temperature"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(options: list[str], word: str) -> None:
    outcome = command("serve", "no-such-model", "--port", "0", "--json", *options)
    assert outcome.code == 2
    assert word in str(error_of(outcome))
