# SPDX-License-Identifier: Apache-2.0
"""The meaning of a configuration, in words: the output of `hopsum controller --check`."""

from __future__ import annotations

from collections.abc import Sequence

from hopsum_controlplane.cluster import ClusterConfig
from hopsum_controlplane.cluster.cluster_config import SwitchConfig
from hopsum_controlplane.token_files import AdminToken


def in_words(config: ClusterConfig, tokens: Sequence[AdminToken]) -> str:
    """Describe a configuration and its administrators, without showing a token."""
    lines = [
        f"database {config.database}",
        f"listens at {config.listen} {_tls(config)}; who makes jobs needs {_asks(config, tokens)}",
        f"page and metrics at {config.metrics_listen or 'no address'}",
        f"leases of {config.lease_s:g} s, heartbeats every {config.heartbeat_s:g} s, "
        f"audits every {config.reconcile_interval_s:g} s; logs from level {config.log_level}",
    ]
    if config.audit_log:
        lines.append(f"who changes what is in {config.audit_log}")
    for switch in config.switches:
        lines += _switch(switch)
    for spine in config.spines:
        lines.append(f"tree of {', '.join(link.leaf for link in config.below(spine))}, then {spine}")
        lines += [f"  {link}" for link in config.below(spine)]
    return "\n".join(lines)


def _tls(config: ClusterConfig) -> str:
    if config.tls_certificate is None:
        return "without TLS"
    clients = f", for clients with a certificate of {config.tls_client_ca}" if config.tls_client_ca else ""
    clients += f" and a name in {config.tls_client_names}" if config.tls_client_names else ""
    return f"with TLS, as {config.tls_certificate}{clients}"


def _asks(config: ClusterConfig, tokens: Sequence[AdminToken]) -> str:
    if not tokens:
        return "no token"
    names = ", ".join(each.name for each in tokens)
    return f"a token in {config.admin_token_file} ({len(tokens)}: {names})"


def _switch(switch: SwitchConfig) -> list[str]:
    ip, port = switch.service
    who = f"workers send to {ip}:{port}; {', '.join(map(str, switch.ports))}"
    tls = "" if switch.tls is None else f", with TLS, of {switch.tls.ca}, as {switch.tls.certificate or 'nobody'}"
    return [
        f"switch {switch.name}: {switch.driver} at {switch.address}, device {switch.device_id}{tls}",
        f"  {switch.slots} slots; {who if switch.ports else 'no worker stands at it'}",
    ]
