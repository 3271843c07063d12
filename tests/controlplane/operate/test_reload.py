# SPDX-License-Identifier: Apache-2.0
"""SIGHUP, secrets that others can read, and the statuses with which a controller ends."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from rich.console import Console

from hopsum.config import resolve
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_base import tls_server
from hopsum_base.tls_server import TlsServerFiles
from hopsum_base.token_files import AdminToken, read_admin_tokens
from hopsum_cli.controller.controller_command import main
from hopsum_cli.diagnosis.joining_side import examine_url
from hopsum_cli.diagnosis.worker_side import Patience
from hopsum_cli.operator import take_snapshot
from hopsum_cli.top.screen import screen
from hopsum_controlplane.cluster import load_config
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.access import Access, Safeguards
from hopsum_controlplane.service.grpc_service import Service, read_safeguards
from hopsum_controlplane.web.page_state import PageState
from hopsum_wire.watch.rates import document

from ...support.pages import blocks, type_in
from ...support.processes import run_hopsum
from ...support.reader import await_end
from ..cluster.world import Cluster
from .test_controller import NOBODY, START_S, Controller, start, write_config

pytestmark = pytest.mark.system
OPENSSL = shutil.which("openssl")
OLD, NEW = "the-old-token-of-the-test", "the-new-token-of-the-test"
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="no openssl command to make certificates with")


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def certify(folder: Path, name: str, days: int = 2) -> None:
    """Make a certificate that is its own authority, in the place of the one before."""
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days))
    more = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", folder / "server.key", "-out", folder / "server.pem")
    command = [str(OPENSSL), "req", "-x509", *new, *more, *files]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "server.key").chmod(0o600)


def hang_up(controller: Controller, answer: str) -> None:
    """Send SIGHUP, and wait for one more line of the log with these words."""

    def told() -> int:
        return controller.process.log_text().count(answer)

    before = told()
    os.kill(controller.process.pid, signal.SIGHUP)
    controller.process.wait_for(lambda: told() > before, answer, START_S)


@needs_openssl
def test_certificates_tokens_and_level_are_reread_and_connections_continue(tmp_path: Path, stack: ExitStack) -> None:
    certify(tmp_path, "first")
    token = private(tmp_path / "admin.token", OLD)
    more = 'tls_certificate = "server.pem"\ntls_key = "server.key"\nadmin_token_file = "admin.token"\n'
    config = write_config(tmp_path, NOBODY, more)
    controller = start(stack, config)

    def connect(with_token: str) -> JobsClient:
        place = ControllerAddress.of(controller.address, ca_file=tmp_path / "server.pem")
        return JobsClient(stack.enter_context(Channel(place)), with_token)

    earlier = connect(OLD)
    assert earlier.jobs() == []

    certify(tmp_path, "second")
    token.write_text(f"alice {NEW}\n{OLD}\n")
    config.write_text(config.read_text().replace("[controller]", '[controller]\nlog_level = "error"\nlease_s = 30'))
    hang_up(controller, "changes of lease_s take effect at the next start")
    assert earlier.jobs() == []  # over the connection of before, with a token that is still valid
    assert connect(NEW).jobs() == []  # which believes the new certificate only

    token.write_text(NEW)
    os.kill(controller.process.pid, signal.SIGHUP)
    connection = connect(NEW)

    def refused() -> bool:  # nothing is logged at this level
        try:
            earlier.jobs()
        except ControllerError as error:
            return "another token than the administrator's" in str(error)
        return False

    controller.process.wait_for(refused, "the old token's end", START_S)
    assert connection.jobs() == []
    assert controller.process.log_text().count("SIGHUP: read ") == 1

    os.kill(controller.process.pid, signal.SIGTERM)
    assert await_end(controller.process) == 0


@needs_openssl
def test_a_certificate_that_ends_soon_is_said_and_one_that_has_ended_is_refused(
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    quiet: None,
) -> None:
    certify(tmp_path, "first")
    tls = TlsServerFiles(tmp_path / "server.pem", tmp_path / "server.key")
    path = write_config(tmp_path, NOBODY, 'tls_certificate = "server.pem"\ntls_key = "server.key"\n')
    soon = r"the certificate .*server\.pem ends in 2 days, at 20\d\d-.* UTC"
    assert main(["--config", str(path), "--check"]) == 0
    assert re.search(soon, capsys.readouterr().out)
    # The command has taken the process's log over.
    logging.getLogger().addHandler(caplog.handler)
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(tls)) as service:
        place = ControllerAddress.of(service.address, ca_file=tls.certificate)
        with Channel(place) as channel:
            shown = document(*[take_snapshot(JobsClient(channel))] * 2)
            token = JobsClient(channel).create("train", 2, 16).token
        private(tmp_path / "job.token", token)
        url = f"hopsum://{service.address}/train?token_file={tmp_path}/job.token&ca={tls.certificate}"
        controller_row = examine_url(resolve({"url": url}), Patience(0.1, 0.1, 0.1)).rows[1]
        assert controller_row.fix == "have its certificate renewed: it ends in 2.0 days"
        with Console(record=True, width=500, file=io.StringIO()) as console:
            console.print(screen(shown))
        seen = (
            console.export_text(),
            PageState(cluster.controller, notices=service.notices).read_values()["notices"][0],
            caplog.text,
        )
        for text in seen:
            assert re.search(soon, text), text
        caplog.clear()
        service.reload(load_config(path))
        assert re.search(soon, caplog.text)
        certify(tmp_path, "first", days=15)
        service.reload(load_config(path))
        assert service.notices() == []

        ended = SimpleNamespace(time=lambda: time.time() + 16 * 86400, strftime=time.strftime, gmtime=time.gmtime)
        monkeypatch.setattr(tls_server, "time", ended)
        with pytest.raises(
            ControlPlaneError, match=r"server\.pem ended at 20.*: no client would take it; make another"
        ):
            service.reload(load_config(path))
    for more in (["--check"], []):
        assert main(["--config", str(path), *more]) == 1
        assert "no client would take it" in capsys.readouterr().err


@needs_openssl
def test_what_does_not_fit_changes_nothing(tmp_path: Path, stack: ExitStack) -> None:
    certify(tmp_path, "first")
    private(tmp_path / "admin.token", OLD)
    more = 'tls_certificate = "server.pem"\ntls_key = "server.key"\nadmin_token_file = "admin.token"\n'
    config = write_config(tmp_path, NOBODY, more)
    controller = start(stack, config)
    authority = tmp_path / "authority.pem"
    shutil.copy(tmp_path / "server.pem", authority)
    key, text = (tmp_path / "server.key").read_bytes(), config.read_text()

    (tmp_path / "server.key").chmod(0o644)
    hang_up(controller, "server.key has mode 0644: others can read it")
    (tmp_path / "server.key").chmod(0o600)
    certify(tmp_path, "second")
    (tmp_path / "server.key").write_bytes(key)
    hang_up(controller, "do not go together")
    (tmp_path / "admin.token").write_text("short")
    hang_up(controller, "nothing has changed")
    for wrong, why in (
        (text.replace('tls_certificate = "server.pem"\ntls_key = "server.key"\n', ""), "cannot begin or end TLS"),
        (text.replace("[controller]", "[control]"), "unknown key 'control'"),
        (text.replace("[controller]", '[controller]\ntls_client_ca = "authority.pem"'), "tls_client_ca"),
    ):
        (tmp_path / "admin.token").write_text(NEW)
        shutil.copy(authority, tmp_path / "server.pem")
        config.write_text(wrong)
        hang_up(controller, why)
    with Channel(ControllerAddress.of(controller.address, ca_file=authority)) as channel:
        assert JobsClient(channel, OLD).jobs() == []
        with pytest.raises(ControllerError, match="another token"):
            JobsClient(channel, NEW).jobs()


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    path = write_config(tmp_path, "unix:run/switch", 'admin_token_file = "secrets/admin.token"')
    path.write_text(path.read_text().replace(str(tmp_path / "state.sqlite"), "state.sqlite"))
    config = load_config(path)
    assert config.database == tmp_path / "state.sqlite"
    assert config.admin_token_file == tmp_path / "secrets" / "admin.token"
    assert config.switches[0].address == f"unix:{tmp_path}/run/switch"


def test_several_tokens_are_valid_each_with_a_name(tmp_path: Path) -> None:
    path = private(tmp_path / "admin.token", f"alice {NEW}\n\n{OLD}\n")
    tokens = read_admin_tokens(path, ControlPlaneError)
    assert tokens == (AdminToken(NEW, "alice"), AdminToken(OLD, "administrator"))
    access = Access(Safeguards(admin_tokens=tokens))
    assert [access.require_admin(OLD), access.require_admin(NEW)] == ["administrator", "alice"]
    assert Access(Safeguards()).require_admin("") == "anybody"
    for text, message in (("\n", "holds 0 tokens"), (f"{NEW}\nshort\n", r"line 2 holds 5 characters, not one word")):
        path.write_text(text)
        with pytest.raises(ControlPlaneError, match=message):
            read_admin_tokens(path, ControlPlaneError)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(
    ("mode", "refused"), [(0o400, False), (0o440, False), (0o600, False), (0o444, True), (0o460, True)]
)
def test_a_file_of_root_may_be_readable_for_its_group(mode: int, refused: bool) -> None:
    """Secrets of Kubernetes and systemd are root's; the service runs as somebody else, of their group."""
    look = (
        "import os, sys; from pathlib import Path; from hopsum_base.token_files import read_admin_tokens;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "print(len(read_admin_tokens(Path(sys.argv[1]), ValueError)))"
    )
    with TemporaryDirectory() as folder:  # pytest's own folders are closed to everybody else
        Path(folder).chmod(0o755)
        path = private(Path(folder) / "admin.token", OLD)
        path.chmod(mode)
        os.chown(path, 0, 65534)
        done = subprocess.run([sys.executable, "-c", look, str(path)], capture_output=True, text=True, check=False)
    if mode & 0o040 or refused:
        assert (done.returncode != 0) is refused, done.stderr
        assert not refused or "others can read it" in done.stderr
    else:
        assert "Permission denied" in done.stderr


@needs_openssl
def test_check_names_tokens_and_certificates(tmp_path: Path) -> None:
    certify(tmp_path, "first")
    private(tmp_path / "admin.token", f"alice {NEW}\n{OLD}\n")
    more = 'tls_certificate = "server.pem"\ntls_key = "server.key"\nadmin_token_file = "admin.token"\n'
    more += 'log_level = "warning"'
    path = write_config(tmp_path, NOBODY, more)
    told = run_hopsum("controller", "--config", str(path), "--check", cwd="/").stdout
    assert f"with TLS, as {tmp_path}/server.pem; who makes jobs needs a token in" in told
    assert "(2: alice, administrator)" in told
    assert "logs from level warning" in told
    assert NEW not in told
    (tmp_path / "server.key").chmod(0o640)
    with pytest.raises(ControlPlaneError, match=r"server\.key has mode 0640: others can read it; chmod 600"):
        read_safeguards(load_config(path))


def test_hanging_up_ends_nothing_and_ctrl_c_is_status_0(tmp_path: Path, stack: ExitStack) -> None:
    """As the page has it, and while it reads."""
    (block,) = blocks("administration", "Signals, files and exit statuses")
    controller = start(stack, write_config(tmp_path, NOBODY))
    (tmp_path / "controller.pid").write_text(f"{controller.process.pid}\n")
    assert f"switch leaf1: native at {NOBODY}" in type_in(tmp_path, block)
    controller.process.wait_for(lambda: "SIGHUP: read " in controller.process.log_text(), "the log", START_S)
    for _ in range(20):
        os.kill(controller.process.pid, signal.SIGHUP)
    hang_up(controller, "SIGHUP: read ")
    os.kill(controller.process.pid, signal.SIGINT)
    assert await_end(controller.process) == 0
