# SPDX-License-Identifier: Apache-2.0
"""Tenants make jobs of their own, within their quotas, and see and touch nobody else's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.errors import ControllerError
from hopsum.rpc.jobs import JobsClient
from hopsum_cli.controller import main
from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.cluster.tenants import TenantConfig
from hopsum_controlplane.metrics.collect import expose
from hopsum_controlplane.service.access import AdminToken, TenantToken
from hopsum_controlplane.service.audit_log import AuditLog
from hopsum_controlplane.service.server import Service

from ..cluster.world import Cluster
from .test_controller import NOBODY, start, start_native, write_config
from .test_reload import hang_up, private

pytestmark = pytest.mark.system
ADMIN = "the-token-of-the-administrator"
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tenants.md").read_text()
TABLE = tuple(range(16))
TENANTS = (
    TenantConfig("vision", Path("vision.token"), max_jobs=3, max_slots=96, max_tables=2, max_members=6),
    TenantConfig("speech", Path("speech.token")),
)
TOKENS = tuple(TenantToken(f"the-token-of-{each.name}-0000", each.name, each.name) for each in TENANTS)


@pytest.fixture
def switches() -> int:
    return 2


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def clients(cluster: Cluster, stack: ExitStack, audit: Path) -> Iterator[tuple[JobsClient, JobsClient, JobsClient]]:
    """Yield the administrator, tenant vision and tenant speech at one service."""
    cluster.controller.quotas.tenants = TENANTS
    admins, log = [AdminToken(ADMIN)], AuditLog(audit)
    with Service(cluster.controller, "127.0.0.1:0", admin_tokens=admins, tenant_tokens=TOKENS, audit=log) as service:
        channel = stack.enter_context(Channel(ControllerAddress.of(service.address)))
        yield tuple(JobsClient(channel, token) for token in (ADMIN, *(each.token for each in TOKENS)))  # type: ignore[misc]


Clients = tuple[JobsClient, JobsClient, JobsClient]


def refusal(client: JobsClient, *job: object, **settings: object) -> str:
    with pytest.raises(ControllerError) as found:
        client.create(*job, **settings)  # type: ignore[arg-type]
    return str(found.value)


def test_a_quota_is_what_all_jobs_of_a_tenant_take(cluster: Cluster, clients: Clients) -> None:
    admin, vision, speech = clients
    vision.create("small", 2, 16)
    vision.create("wide", 2, 32, shards=2, table=TABLE)  # twice its slots, and twice its table
    told = refusal(vision, "more", 2, 32)
    assert "job 'more' takes 32 slots, and tenant 'vision' has 80 of its 96 (max_slots) in 2 jobs; ask for at" in told
    assert "most 16, delete one of its jobs (small, wide), or ask the administrator for a larger max_slots" in told
    assert "takes 1 table, " in refusal(vision, "more", 2, 16, table=TABLE)
    assert "takes 3 members, " in refusal(vision, "more", 2, 16, observers=1)
    vision.create("third", 2, 16)
    told = refusal(vision, "fourth", 1, 16)
    assert "job 'fourth' takes 1 job, and tenant 'vision' has 3 of its 3 (max_jobs) in 3 jobs; delete one" in told
    assert [job.name for job in vision.jobs()] == ["small", "third", "wide"]
    speech.create("large", 64, 512)
    admin.create("for-anybody", 64, 512)
    vision.delete("wide")
    vision.create("more", 2, 32, table=TABLE)
    assert {job.tenant for job in admin.jobs()} == {"", "vision", "speech"}


def test_a_refused_job_takes_nothing(cluster: Cluster, clients: Clients) -> None:
    _, vision, _ = clients
    vision.create("all", 2, 96)
    before = [each.slots_used for each in cluster.controller.switches()]
    for number in range(20):
        refusal(vision, f"more{number}", 2, 1)
    assert [each.slots_used for each in cluster.controller.switches()] == before
    assert [job.name for job in vision.jobs()] == ["all"]


def test_a_tenant_has_nothing_to_do_with_jobs_of_others(cluster: Cluster, clients: Clients, audit: Path) -> None:
    admin, vision, speech = clients
    token = admin.create("ours", 2, 16).token
    speech.create("theirs", 2, 16)
    assert vision.jobs() == []
    for name in ("ours", "theirs", "nobody's"):
        what = f"tenant 'vision' has no job {name!r}"
        for call in (vision.job, vision.delete, vision.rotate_token, vision.revoke_earlier_token):
            with pytest.raises(ControllerError, match=re.escape(repr(name)) + "|no job") as found:
                call(name)
            assert what in str(found.value)
    for forbidden in (vision.switches, vision.backup, lambda: vision.move("ours")):
        with pytest.raises(ControllerError, match="for administrators, and this call has a token of tenant 'vision'"):
            forbidden()
    assert [job.name for job in admin.jobs()] == ["ours", "theirs"]
    assert cluster.controller.locate("ours", token).workers == 2
    text = audit.read_text()
    assert '"action": "DeleteJob", "identity": "vision", "peer": ' in text
    assert '"tenant": "vision", "job": "theirs"' in text


def test_quotas_survive_a_restart_and_are_metrics(cluster: Cluster, clients: Clients, tmp_path: Path) -> None:
    _, vision, _ = clients
    vision.create("small", 2, 16)
    text = expose(cluster.controller)
    assert 'hopsum_controller_tenant_used{resource="slots",tenant="vision"} 16.0' in text
    assert 'hopsum_controller_tenant_quota{resource="slots",tenant="vision"} 96.0' in text
    assert 'hopsum_controller_tenant_used{resource="jobs",tenant="speech"} 0.0' in text
    assert 'hopsum_controller_tenant_quota{resource="jobs",tenant="speech"}' not in text
    backup = tmp_path / "backup.sqlite"
    backup.write_bytes(cluster.controller.backup())
    store = StateStore(backup)
    assert [record.request.tenant for record in store.load().records] == ["vision"]
    store.close()


def test_the_configuration_of_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    def check(tenants: str, more: str = 'admin_token_file = "admin.token"') -> tuple[int, str]:
        path = write_config(tmp_path, NOBODY, more)
        path.write_text(path.read_text() + tenants)
        status = main(["--config", str(path), "--check"])
        found = capsys.readouterr()
        return status, found.out + found.err

    for name in ("admin", "vision"):
        private(tmp_path / f"{name}.token", f"the-token-of-{name}-0000\n")
    vision = '\n[[tenant]]\nname = "vision"\ntoken_file = "vision.token"\nmax_slots = 512\n'
    status, told = check(vision)
    assert status == 0
    assert f"tenant vision: tokens in {tmp_path}/vision.token; 512 slots" in told
    assert check(vision, "")[1].startswith("hopsum controller: error:")
    for wrong, why in (
        (vision.replace("512", "-1"), "tenant 'vision': max_slots -1"),
        (vision.replace("max_slots", "slots"), "[[tenant]] 0 has an unknown key 'slots'; did you mean max_slots?"),
        (vision + vision, "several tenants 'vision'"),
        (vision.replace('"vision"', '"a tenant"'), "[[tenant]] 'a tenant'"),
        (vision.replace("vision.token", "admin.token"), "hold one token"),
        (vision.replace("vision.token", "nowhere"), "tenant 'vision' token file"),
    ):
        status, told = check(wrong)
        assert status == 1
        assert why in told


def test_the_page(tmp_path: Path, stack: ExitStack) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tenant,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    refused, _ = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    private(tmp_path / "admin.token", "the-token-of-admin-0000\n")
    private(tmp_path / "vision.token", "the-token-of-vision-0000\n")
    config = write_config(tmp_path, start_native(tmp_path, stack), 'admin_token_file = "admin.token"')
    config.write_text(config.read_text() + tenant)
    controller = start(stack, config)
    environment = {**os.environ, "HOPSUM_CONTROLLER": controller.address, "HOPSUM_CONFIG": os.devnull}

    def type_in(block: str) -> subprocess.CompletedProcess[str]:
        script = f'hopsum() {{ "{sys.executable}" -m hopsum_cli.main "$@"; }}\n{block}'
        command = ["bash", "-euc", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = type_in(commands)
    assert done.returncode == 0, done.stderr
    assert "cats" in done.stdout
    done = type_in("hopsum job create dogs --workers 2 --slots 768 --admin-token-file vision.token")
    assert done.returncode == 1
    assert " ".join(done.stderr.split()) == " ".join(refused.replace("127.0.0.1:4700", controller.address).split())


def test_hanging_up_reads_tokens_and_quotas(tmp_path: Path, stack: ExitStack) -> None:
    for name in ("admin", "vision"):
        private(tmp_path / f"{name}.token", f"the-token-of-{name}-0000\n")
    config = write_config(tmp_path, start_native(tmp_path, stack), 'admin_token_file = "admin.token"')
    quota = '\n[[tenant]]\nname = "vision"\ntoken_file = "vision.token"\nmax_slots = 96\n'
    config.write_text(config.read_text() + quota)
    controller = start(stack, config)
    channel = stack.enter_context(Channel(ControllerAddress.of(controller.address)))
    JobsClient(channel, "the-token-of-vision-0000").create("small", 2, 96)
    config.write_text(config.read_text().replace("max_slots = 96", "max_slots = 128"))
    private(tmp_path / "vision.token", "carol the-new-token-of-vision\n")
    hang_up(controller, "SIGHUP: read ")
    assert "take effect at the next start" not in controller.process.log_text()
    with pytest.raises(ControllerError, match="another token than the administrator's"):
        JobsClient(channel, "the-token-of-vision-0000").jobs()
    carol = JobsClient(channel, "the-new-token-of-vision")
    carol.create("more", 2, 32)
    assert [job.name for job in carol.jobs()] == ["more", "small"]
