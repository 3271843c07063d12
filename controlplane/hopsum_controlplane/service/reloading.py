# SPDX-License-Identifier: Apache-2.0
"""The configuration read again while a controller serves: secrets and the log's level change, no more."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from hopsum_controlplane.cluster import ClusterConfig, load_config
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.logs import set_level
from hopsum_controlplane.service.server import Service

_TLS: Final = ("tls_certificate", "tls_key", "tls_client_ca", "tls_client_names")
RELOADED: Final = (*_TLS, "admin_token_file", "switch_token_file", "log_level", "audit_log")
"""Settings that take effect without another start: keys of [controller], and the files that they name."""
_log: Final = logging.getLogger(__name__)


class Reloading:
    """Reads the configuration of a serving controller again.

    Args:
        config: what `path` held when the controller was started. log_level: of the command line, None where the
        configuration says it.
    """

    def __init__(self, path: Path, config: ClusterConfig, service: Service, log_level: str | None = None) -> None:
        self._path, self._service, self._log_level = path, service, log_level
        self._config = config

    def reload(self) -> bool:
        """Take what the file says now, and return True. Log why not, and return False."""
        try:
            found = load_config(self._path)
            self._service.reload(found)
        except ControlPlaneError as error:
            _log.error("SIGHUP: %s; nothing has changed", error)
            return False
        self._config = replace(self._config, **{name: getattr(found, name) for name in RELOADED})
        _log.info("SIGHUP: read %s again: certificates, keys, tokens, log level, audit log", self._path)
        ignored = [each.name for each in fields(ClusterConfig) if _differ(self._config, found, each.name)]
        if ignored:
            _log.warning("SIGHUP: changes of %s take effect at the next start", ", ".join(ignored))
        set_level(self._log_level or self._config.log_level)
        return True


def _differ(now: Any, found: Any, name: str) -> bool:
    return bool(getattr(now, name) != getattr(found, name))
