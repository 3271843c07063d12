# SPDX-License-Identifier: Apache-2.0
"""The code cache: it holds code that will run, so it trusts nothing that others could have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsum_switch.native import compiler
from hopsum_switch.native.compiler import CodeCache, default_cache
from hopsum_switch.native.native_engine import NativeEngine

from ..core.builder import assign, build, field, hexstr

pytestmark = pytest.mark.system
KEY = ("program", "processor")


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "folder")


def only_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "folder").iterdir()
    return path


def test_what_is_saved_is_found_under_its_key_only(cache: CodeCache, tmp_path: Path) -> None:
    assert cache.load(KEY) is None
    cache.save(KEY, b"code")
    assert cache.load(KEY) == b"code"
    assert cache.load(("program", "another processor")) is None
    assert cache.load(("programprocessor", "")) is None
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_damaged_files_are_ignored(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    content = only_file(tmp_path).read_bytes()
    for damaged in (b"", content[:-1], content[:20], content[:-1] + b"x", b"y" + content[1:], content + b"z"):
        only_file(tmp_path).write_bytes(damaged)
        assert cache.load(KEY) is None, damaged
    cache.save(KEY, b"code")
    assert cache.load(KEY) == b"code"


def test_what_others_can_write_is_ignored(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    only_file(tmp_path).chmod(0o666)
    assert cache.load(KEY) is None
    only_file(tmp_path).chmod(0o600)
    (tmp_path / "folder").chmod(0o777)
    assert cache.load(KEY) is None
    cache.save(("another", "key"), b"code")
    assert len(list((tmp_path / "folder").iterdir())) == 1, "nothing is put into such a folder"


def test_links_are_not_followed(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    path = only_file(tmp_path)
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load(KEY) is None


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "folder")
    cache.save(KEY, b"code")
    assert cache.load(KEY) is None


def test_a_cached_program_is_not_compiled_again(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = build()
    builder.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(1)))
    program = builder.load()
    expected = NativeEngine(program, cache=cache).process(0, b"\x01\x02\x03")
    monkeypatch.setattr(compiler, "_compile", lambda unit: pytest.fail("compiled again"))
    assert NativeEngine(program, cache=cache).process(0, b"\x01\x02\x03") == expected
    assert len(expected) == 1


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")
    assert default_cache() is not None
