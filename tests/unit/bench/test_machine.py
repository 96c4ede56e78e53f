"""What stands beside a number: the commit, and whether the code is another by now."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from draftgraph.bench.machine import commit


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("src/code.py", "benchmarks/run.py", "benchmarks/results/one.json", "docs/log.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "dirty"),
    [("src/code.py", True), ("src/new.py", True), ("benchmarks/run.py", True), ("benchmarks/results/one.json", False),
     ("docs/log.md", False)],
)  # fmt: skip
def test_a_commit_is_dirty_where_its_code_has_changed(checkout: Path, name: str, dirty: bool) -> None:
    clean = commit(checkout / "src" / "code.py")
    assert clean is not None
    assert not clean.endswith("-dirty")
    (checkout / name).write_text("other\n")
    assert commit(checkout / "src" / "code.py") == clean + "-dirty" * dirty
