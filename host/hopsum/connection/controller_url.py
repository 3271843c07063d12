# SPDX-License-Identifier: Apache-2.0
"""hopsum://: a job of a controller, which says where the switch is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from urllib.parse import SplitResult, unquote

from hopsum.agent import Communicator
from hopsum.codec import Codec
from hopsum.config import Config
from hopsum.connection.open_agent import Hooks, codec_for_job, open_agent, record_settings
from hopsum.connection.url import UrlError, on_or_off, query_of, split_url
from hopsum.rpc.channel import ControllerAddress
from hopsum.rpc.controller_job import job_token, open_job


def open_controller_job(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Join a job of the controller that the URL names, and return the agent. Raises as `open_job`, and UrlError.

    The recorded settings (`settings_of`) have the codec of the job.
    """
    address, job, token = _controller_at(config, parts)
    # the controller is given time to bring a switch back
    patient = replace(config, unreachable_s=max(config.unreachable_s, config.membership_wait_s))
    resolved: list[Config] = []

    def make_codec(settings: Config, workers: int) -> Codec:
        """Keep the settings, which have the job's codec, and make that codec."""
        resolved.append(settings)
        return codec_for_job(settings, workers)

    make_agent = partial(open_agent, patient, hooks)
    opened = open_job(config, address, job, token, make_codec=make_codec, make_agent=make_agent)
    record_settings(opened, resolved[-1])
    return opened


def controller_at(config: Config) -> tuple[ControllerAddress, str, str]:
    """Return the controller's address in a hopsum:// URL, the job's name, and the job's token.

    Reads the token file if the URL or the settings name one. Connects to nothing.

    Raises:
        ConfigError: a URL of another kind, or malformed, or a token that cannot be read.
        HopsumError: files for TLS that do not fit.
    """
    return _controller_at(config, split_url(config))


def _controller_at(config: Config, parts: SplitResult) -> tuple[ControllerAddress, str, str]:
    if parts.scheme != "hopsum":
        raise UrlError(f"URL {config.url!r}: a controller's job is hopsum://HOST:PORT/JOB")
    query = query_of(config, parts, {"token_file": str, "ca": str, "tls": on_or_off})
    job = unquote(parts.path.strip("/"))
    if not parts.hostname or not parts.port or not job:
        raise UrlError(f"URL {config.url!r}: a controller's job is hopsum://HOST:PORT/JOB")
    token = job_token(config, query.get("token_file", config.token_file))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = ControllerAddress.of(
        f"{host}:{parts.port}",
        tls=query.get("tls"),
        ca_file=query.get("ca", config.ca_file),
        certificate_file=config.certificate_file,
        key_file=config.key_file,
    )
    return address, job, token
