# SPDX-License-Identifier: Apache-2.0
"""The streams that `ServerTls` keeps for a reload, with calls and credentials of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from hopsum_switch import grpc_address
from hopsum_switch.grpc_address import ServerTls


class _AbortedError(Exception):
    """The call was aborted."""


class Context:
    """The context of a call of the client `name`. With `ended` gRPC takes no callback any more."""

    def __init__(self, name: str, *, ended: bool = False) -> None:
        self._name, self._ended = name, ended
        self.is_cancelled = False
        self.callbacks: list[Callable[[], None]] = []

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [self._name.encode()]}

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self._ended:
            self.callbacks.append(callback)
        return not self._ended

    def abort(self, code: grpc.StatusCode, told: str) -> None:
        raise _AbortedError(code.name)

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names"
    path.write_text("alice\n")
    return path


@pytest.fixture
def tls(names: Path, monkeypatch: pytest.MonkeyPatch) -> ServerTls:
    files = SimpleNamespace(credentials=None, files=None, prepare=lambda _: None, use=lambda _: None)
    monkeypatch.setattr(grpc_address, "ServerCredentials", lambda *_: files)
    return ServerTls(files, names)  # type: ignore[arg-type]


def guarded(tls: ServerTls, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    handler = grpc.unary_stream_rpc_method_handler(answer)
    function: Callable[[Any, Any], Any] = tls.intercept_service(lambda _: handler, None).unary_stream
    return function


def test_a_stream_is_kept_until_it_ends(tls: ServerTls, names: Path) -> None:
    serve = guarded(tls, lambda request, context: iter(()))
    ended, lasting = Context("alice"), Context("alice")
    for context in (ended, lasting):
        serve(b"", context)
    for callback in ended.callbacks:
        callback()
    names.write_text("bob\n")
    tls.reload()
    assert (ended.is_cancelled, lasting.is_cancelled) == (False, True)


def test_a_stream_that_has_ended_before_its_handler_runs_is_not_kept(tls: ServerTls, names: Path) -> None:
    context = Context("alice", ended=True)
    guarded(tls, lambda request, context: iter(()))(b"", context)
    assert not tls._streams
    names.write_text("bob\n")
    tls.reload()
    assert not context.is_cancelled


def test_a_stream_that_begins_during_a_reload_is_ended_or_refused(
    tls: ServerTls, names: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = tls._may

    def reloading(name: str) -> bool:
        """Reload between the check of a new stream's name and its answer."""
        allowed = may(name)
        monkeypatch.setattr(tls, "_may", may)
        names.write_text("bob\n")
        tls.reload()
        return allowed

    monkeypatch.setattr(tls, "_may", reloading)
    context = Context("alice")
    guarded(tls, lambda request, context: iter(()))(b"", context)
    assert context.is_cancelled


def test_another_client_is_refused(tls: ServerTls) -> None:
    with pytest.raises(_AbortedError, match="UNAUTHENTICATED"):
        guarded(tls, lambda request, context: iter(()))(b"", Context("bob"))
