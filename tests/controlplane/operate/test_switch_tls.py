# SPDX-License-Identifier: Apache-2.0
"""P4Runtime with TLS on both sides, of the embedded switch and of bmv2; certificates replaced, and clients shut out."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.switch_tls import SwitchTls
from hopsum_switch.management_command import main as switch_ctl
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

from ...support.pages import blocks, type_in
from ..tofino.bf_runtime import bf_runtime
from .test_controller import NOBODY, START_S, start, start_switch, write_config

OPENSSL = shutil.which("openssl")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(OPENSSL is None, reason="no openssl command to make certificates with"),
]


def certificate_blocks() -> tuple[str, str]:
    """Return the page's blocks for certificates of controller and operators, and of switches."""
    _, _, certificates, switches, _ = blocks("administration", "Tokens and certificates")
    return certificates, switches


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for block in certificate_blocks():
        type_in(folder, block)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def start_with_tls(folder: Path, stack: ExitStack, *options: str) -> tuple[ManagedProcess, str]:
    files = (("certificate", "leaf1.pem"), ("key", "leaf1.key"), ("client-ca", "ca.pem"))
    tls = [word for option, name in files for word in (f"--tls-{option}", str(folder / name))]
    return start_switch(folder, stack, *options, *tls)


def tls(folder: Path, name: str = "controller") -> SwitchTls:
    names = {"controller": "server"}
    return SwitchTls(folder / "ca.pem", *(folder / f"{names.get(name, name)}.{kind}" for kind in ("pem", "key")))


def why(address: str, given: SwitchTls | None, driver: str = "native") -> str:
    with pytest.raises(ControlPlaneError) as found:
        open_device(driver, address, connect_timeout_s=2.0, tls=given)
    return str(found.value)


def start_bmv2(folder: Path, stack: ExitStack) -> str:
    program = shutil.which("simple_switch_grpc")
    if program is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    address, thrift = f"127.0.0.1:{free_port()}", free_port()
    command = [program, "--no-p4", "--thrift-port", str(thrift), "--", "--grpc-server-ssl"]
    command += ["--grpc-server-addr", address]
    command += ["--grpc-server-cacert", str(folder / "ca.pem"), "--grpc-server-cert", str(folder / "leaf1.pem")]
    command += ["--grpc-server-key", str(folder / "leaf1.key"), "--grpc-server-with-client-auth"]
    switch = ManagedProcess(command, folder / "bmv2.log")
    stack.callback(switch.stop)
    host, _, port = address.rpartition(":")
    switch.wait_for(lambda: listens(host, int(port)), "bmv2", START_S)
    return address


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("driver", ["native", "bmv2"])
def test_a_session_needs_both_certificates(folder: Path, stack: ExitStack, driver: str) -> None:
    address = start_with_tls(folder, stack)[1] if driver == "native" else start_bmv2(folder, stack)
    with open_device(driver, address, tls=tls(folder)) as device:
        assert device.read_cookie() is None
    assert "something listens there: if it speaks TLS, give its authority (tls_ca)" in why(address, None, driver)
    stranger = SwitchTls(folder / "server.pem")  # which has certified nobody
    assert "CERTIFICATE_VERIFY_FAILED" in why(address, stranger, driver)
    assert "check tls_ca, the address in the switch's certificate" in why(address, SwitchTls(folder / "ca.pem"), driver)


def test_clients_are_named_and_shut_out(folder: Path, stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    names = folder / "names"
    names.write_text("# who may call\ncontroller\nalice\n")
    switch, address = start_with_tls(folder, stack, "--tls-client-names", str(names))
    device = stack.enter_context(open_device("native", address, tls=tls(folder)))
    assert device.read_cookie() is None
    asking = ["--grpc", address, "--tls-ca", str(folder / "ca.pem")]
    asking += ["--tls-certificate", str(folder / "alice.pem"), "--tls-key", str(folder / "alice.key"), "ports"]
    assert switch_ctl(asking) == 0

    def hang_up(answer: str) -> None:
        before = switch.log_text().count(answer)
        os.kill(switch.pid, signal.SIGHUP)
        switch.wait_for(lambda: switch.log_text().count(answer) > before, answer, START_S)

    names.write_text("alice\n")
    hang_up("SIGHUP: read certificates, key and names of clients again")
    with pytest.raises(ControlPlaneError):
        device.read_cookie()  # its session was ended
    assert "certificate 'controller' is not among the names that may call this switch" in why(address, tls(folder))
    assert switch_ctl(asking) == 0
    names.unlink()
    hang_up("nothing has changed")
    assert switch_ctl(asking) == 0
    names.write_text("controller\n")
    hang_up("SIGHUP: read certificates, key and names of clients again")
    open_device("native", address, tls=tls(folder)).close()
    assert switch_ctl(asking) != 0
    assert "certificate 'alice' is not among the names" in capsys.readouterr().err


def test_certificates_are_replaced(folder: Path, stack: ExitStack) -> None:
    """An open session continues; the next one gets the new certificate, which another authority has made."""
    switch, address = start_with_tls(folder, stack)
    device = stack.enter_context(open_device("native", address, tls=tls(folder)))
    old = (folder / "ca.pem").read_bytes()
    for block in certificate_blocks():
        type_in(folder, block)
    os.kill(switch.pid, signal.SIGHUP)
    switch.wait_for(lambda: "SIGHUP: read certificates" in switch.log_text(), "the new certificates", START_S)
    assert device.read_cookie() is None
    device.close()
    open_device("native", address, tls=tls(folder)).close()
    (folder / "old.pem").write_bytes(old)
    assert "CERTIFICATE_VERIFY_FAILED" in why(address, SwitchTls(folder / "old.pem"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tls-certificate", "leaf1.pem"), "go together"),
        (("--tls-client-ca", "ca.pem"), "needs --tls-certificate"),
        (
            ("--tls-certificate", "leaf1.pem", "--tls-key", "leaf1.key", "--tls-client-names", "ca.pem"),
            "needs --tls-c",
        ),
        (
            ("--tls-certificate", "leaf1.pem", "--tls-key", "server.key"),
            "key server.key do not go together",
        ),
        (
            ("--tls-certificate", "leaf1.pem", "--tls-key", "open.key"),
            "mode 0644: others can read it; chmod 600",
        ),
    ],
)
def test_files_that_do_not_fit(folder: Path, options: tuple[str, ...], told: str) -> None:
    shutil.copy(folder / "leaf1.key", folder / "open.key")
    (folder / "open.key").chmod(0o644)
    command = [sys.executable, "-m", "hopsum_switch", "--grpc", "127.0.0.1:0", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert told in done.stderr


def test_a_controller_drives_its_switch(folder: Path, stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    from hopsum_cli.controller.controller_command import main

    _, address = start_with_tls(folder, stack)
    config = write_config(folder, address)
    (keys,) = blocks("administration", "Between controller and switches", "toml")
    config.write_text(config.read_text() + keys)
    assert main(["--config", str(config), "--check"]) == 0
    assert f"with TLS, of {folder}/ca.pem, as {folder}/server.pem" in capsys.readouterr().out
    controller = start(stack, config)
    seen: Any = controller.operator(stack).switches()[0]
    assert (seen.reachable, seen.condition) == (True, "")
    controller.process.stop()
    (folder / "server.key").unlink()
    assert main(["--config", str(config), "--check"]) == 1
    assert "TLS to the switch" in capsys.readouterr().err
    config.write_text(config.read_text().replace("tls_key", "# tls_key"))
    assert main(["--config", str(config), "--check"]) == 1
    assert "only one of tls_certificate and tls_key" in capsys.readouterr().err


def test_documented_certificates_are_no_authorities(folder: Path) -> None:
    for name in ("server", "alice", "leaf1"):
        shown = [str(OPENSSL), "x509", "-in", f"{name}.pem", "-noout", "-ext", "basicConstraints"]
        done = subprocess.run(shown, cwd=folder, capture_output=True, text=True, check=True)
        assert "CA:FALSE" in done.stdout
        assert "CA:TRUE" not in done.stdout


def test_a_client_of_the_controller_is_revoked_as_the_page_says(folder: Path, stack: ExitStack) -> None:
    (revoke,) = blocks("administration", "Revoking a certificate")
    (folder / "names").write_text("controller\nalice\nbob\n")
    more = (
        'tls_certificate = "server.pem"\ntls_key = "server.key"\ntls_client_ca = "ca.pem"\ntls_client_names = "names"\n'
    )
    controller = start(stack, write_config(folder, NOBODY, more), "--log", "json")
    (folder / "controller.pid").write_text(str(controller.process.pid))
    files: dict[str, Any] = {
        "ca_file": folder / "ca.pem",
        "certificate_file": folder / "alice.pem",
        "key_file": folder / "alice.key",
    }
    channel = stack.enter_context(Channel(ControllerAddress.of(controller.address, **files)))
    with pytest.raises(ControllerError, match="no job"):
        JobsClient(channel).delete("digits")
    assert '"identity": "anybody", "certificate": "alice"' in controller.process.log_text()
    type_in(folder, revoke)
    controller.process.wait_for(lambda: "SIGHUP: read " in controller.process.log_text(), "the names", START_S)
    with pytest.raises(ControllerError, match="certificate 'alice' is not among the names that may call") as found:
        JobsClient(channel).jobs()  # on the connection that it had
    assert found.value.code == "UNAUTHENTICATED"
    assert (folder / "names").read_text() == "controller\nbob\n"


def test_bf_runtime_with_tls(folder: Path) -> None:
    """A server that wants a client's certificate takes the controller's, and no session in the clear."""
    pair = tuple((folder / f"leaf1.{kind}").read_bytes() for kind in ("key", "pem"))
    credentials = grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes(), require_client_auth=True)
    with bf_runtime(credentials) as chip:
        with open_device("tofino", chip.address, tls=tls(folder)) as device:
            assert device.read_cookie() is None, "no program"
        assert "no BF Runtime server answered in 2 s" in why(chip.address, None, "tofino")
