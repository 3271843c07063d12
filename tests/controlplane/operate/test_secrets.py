# SPDX-License-Identifier: Apache-2.0
"""The secrets of docs/administration.md as an operator replaces them: with TLS, while a job trains."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient

from ...support.pages import blocks, type_in
from .test_controller import START_S, start, start_native, write_config

pytestmark = pytest.mark.system
OPENSSL = shutil.which("openssl")


@pytest.mark.skipif(OPENSSL is None, reason="no openssl command to make certificates with")
def test_the_commands_for_tokens_and_certificates(tmp_path: Path, stack: ExitStack) -> None:
    version = subprocess.run([str(OPENSSL), "version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"OpenSSL (\d+)", version)[0]) < 3:
        pytest.skip(f"openssl req -CA needs version 3, here is {version.strip()}")
    admin, rotate, certify, *_ = blocks("administration", "Tokens and certificates")
    type_in(tmp_path, certify)
    (tmp_path / "admin.token").touch(0o600)
    (tmp_path / "admin.token").write_text("the-token-of-the-first-day\n")
    more = 'tls_certificate = "server.pem"\ntls_key = "server.key"\ntls_client_ca = "ca.pem"\n'
    more += 'admin_token_file = "admin.token"\naudit_log = "audit.jsonl"\n'
    controller = start(stack, write_config(tmp_path, start_native(tmp_path, stack), more))
    (tmp_path / "controller.pid").write_text(str(controller.process.pid))
    files = {
        "ca_file": tmp_path / "ca.pem",
        "certificate_file": tmp_path / "alice.pem",
        "key_file": tmp_path / "alice.key",
    }
    channel = stack.enter_context(Channel(ControllerAddress.of(controller.address, **files)))
    first = JobsClient(channel, "the-token-of-the-first-day")
    old = first.create("digits", 2, 16).token

    type_in(tmp_path, admin)
    controller.process.wait_for(lambda: "SIGHUP: read " in controller.process.log_text(), "the new tokens", START_S)
    assert [job.name for job in first.jobs()] == ["digits"]
    names = {f"HOPSUM_{name.upper()}": str(path) for name, path in files.items()}
    rotating, revoking = rotate.strip().splitlines()
    at = f" --controller {controller.address}"
    type_in(tmp_path, rotating + at, **names)
    new = (tmp_path / "digits-2.token").read_text().strip()
    for token in (old, new):
        assert MemberClient(channel, "digits", token).locate(5.0).workers == 2
    type_in(tmp_path, revoking + at, **names)
    assert MemberClient(channel, "digits", new).locate(5.0).workers == 2
    with pytest.raises(ControllerError, match="wrong token"):
        MemberClient(channel, "digits", old).locate(5.0)

    before = (tmp_path / "server.pem").read_bytes()
    type_in(tmp_path, "".join(line for line in certify.splitlines(keepends=True)[1:]))  # with the same authority
    assert (tmp_path / "server.pem").read_bytes() != before
    type_in(tmp_path, 'kill -HUP "$(cat controller.pid)"')
    twice = lambda: controller.process.log_text().count("SIGHUP: read ") == 2  # noqa: E731
    controller.process.wait_for(twice, "the new certificate", START_S)
    assert first.jobs()
    again = stack.enter_context(Channel(ControllerAddress.of(controller.address, **files)))
    assert JobsClient(again, "the-token-of-the-first-day").jobs()
    audit = (tmp_path / "audit.jsonl").read_text()
    assert re.search(r'"RotateJobToken", "identity": "alice", "certificate": "alice", "peer": "ipv4:', audit)
    assert '"RevokeEarlierToken"' in audit
    assert old not in audit
    assert new not in audit + controller.process.log_text()
