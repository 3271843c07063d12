# SPDX-License-Identifier: Apache-2.0
"""Settings of one worker, from keyword arguments, the environment and defaults, in that order.

A setting's environment variable is HOPSUM_ and its name in capitals. torchrun's RANK is the rank if no setting gives
the rank. Every setting is a field of `Config`, or of `HookSettings` for the hooks of training scripts. The error of a
refused setting names its origin. Tests compare `ConnectOptions`, which type checkers see, with `Config`.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, TypedDict

from hopsum.codec import CODECS
from hopsum.codec.interface import ON_NONFINITE, CodecError, OnNonfinite
from hopsum.codec.registry import parse_codec
from hopsum.errors import HopsumError
from hopsum.protocol.peer_messages import PEER_VERSION
from hopsum_base import __version__
from hopsum_base.shown import name_hint

_PREFIX: Final = "HOPSUM_"
# Kubernetes sets such variables in every pod for a Service named hopsum-NAME.
_SERVICE_LINK: Final = re.compile(r"HOPSUM_\w+?_(?P<kind>SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_\w+|PORT|PORT_\d+_\w+)")
_OTHERS: Final = (
    "HOPSUM_ADMIN_TOKEN_FILE", "HOPSUM_COMPARE", "HOPSUM_COMPILED", "HOPSUM_CONTROLLER", "HOPSUM_HOST",
    "HOPSUM_NETWORK", "HOPSUM_TLS",
)  # fmt: skip
"""Variables that are no settings of `connect`: `hopsum.torch`, the compiled loops and `hopsum_cli.context` read some,
and `hopsum topology run` sets the others for the commands on its hosts."""
DEFAULT_CODEC: Final = "thc"
"""Codec of a job without one, and of a worker whose settings name none."""
CodecOn = Literal["auto", "device", "host"]
"""The place at which tensors are encoded and decoded.

"auto": tensors on a GPU on the GPU, if their codec has a form for devices; else on the host. "device": on their device,
also the CPU, or an error. "host": on the host. The bytes on the wire are the same."""
CODEC_ON: Final = ("auto", "device", "host")
Method = Literal["hopsum", "auto"]
"""Through hopsum in any case, or by the fastest of its methods and torch's process group, after a trial."""
OnSwitchLost = Literal["raise", "fall_back"]
"""The reaction of DDP's hook to a switch that is lost for good."""
# Ranks of hosts:// end together, as those of torch's gloo: nothing starts a replacement, a rank may compute for as long
# as gloo waits, and the lease detects lost hosts.
_OF_HOSTS: Final = {"replacement_wait_s": 0.0, "unreachable_s": 30.0, "deadline_s": 1800.0}
"""Defaults of hosts:// that other URLs do not have."""
_MAX_RANK: Final = 65535
"""The largest rank of a world. The job says which ranks it has."""
BOOLEANS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class ConfigError(HopsumError):
    """A setting that is unknown or does not fit. The message has its origin and the values that would fit."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of a setting: the parser of its text, and the check of its value."""

    name: str
    parse: Callable[[str], Any]
    fits: Callable[[Any], bool]
    secret: bool = False
    """Messages never contain its values."""


def _text(*choices: str) -> _Kind:
    name = " or ".join(f'"{choice}"' for choice in choices) or "text"
    return _Kind(name, str, lambda value: isinstance(value, str) and (not choices or value in choices))


def _integer(low: int, high: int) -> _Kind:
    return _Kind(f"integer of {low} to {high}", int, lambda value: type(value) is int and low <= value <= high)


def _seconds(low: float, high: float) -> _Kind:
    fits = lambda value: type(value) in (int, float) and low <= value <= high  # noqa: E731
    return _Kind(f"number of {low:g} to {high:g}", float, fits)


_CODEC: Final = _Kind(
    f'{_text(*CODECS).name}, with options as in "thc:bits=2"', str, lambda value: isinstance(value, str)
)
"""Any text: `parse_codec` checks it, because its message names the error."""
_SECRET: Final = _Kind("text", str, lambda value: isinstance(value, str), secret=True)
_COUNT: Final = _Kind("integer of 0 or more", int, lambda value: type(value) is int and value >= 0)
_RANK: Final = _Kind("integer of 1 or more", int, lambda value: type(value) is int and value >= 1)
_NAMES: Final = _Kind(
    "list of names, with commas between them",
    lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
    lambda value: all(isinstance(each, str) for each in value),
)
_FLAG: Final = _Kind("true or false", lambda text: BOOLEANS[text.lower()], lambda value: isinstance(value, bool))
_OPTIONS: Final = _Kind(
    "table", lambda text: tomllib.loads(f"it = {text}")["it"], lambda value: isinstance(value, dict)
)


def _setting(default: Any, kind: _Kind, meaning: str) -> Any:
    """Declare a field of `Config`: its default, the check of its values, and its row in the documentation."""
    metadata = {"kind": kind, "meaning": meaning}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not kind.secret)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of `hopsum.connect`. `resolve` makes and checks them. Times are in seconds."""

    url: str = _setting("", _text(), "address of the sum: a membership file, a job of a controller, a group of ranks")
    rank: int | None = _setting(None, _integer(0, _MAX_RANK), "rank of this worker; default: torchrun's RANK")
    codec: str = _setting(
        "", _CODEC, f"codec of all ranks; default: the one of a controller's job, else {DEFAULT_CODEC}"
    )
    codec_options: dict[str, Any] = _setting(
        {}, _OPTIONS, "options of the codec, the same on all ranks; default: those of a controller's job"
    )
    backend: str = _setting(
        "auto", _text("auto", "numpy", "numba"), "library that encodes and decodes; ranks may differ"
    )
    codec_on: CodecOn = _setting(
        "auto", _text(*CODEC_ON), "place where `allreduce` encodes tensors that are on a GPU; ranks may differ"
    )
    threads: int = _setting(1, _integer(1, 256), "threads that encode and decode")
    local_group: str = _setting(
        "", _text(), 'ranks that sum in shared memory first: "auto", those of this host; else one name'
    )
    seed: int = _setting(0, _integer(0, (1 << 63) - 1), "seed of rotations and roundings, the same on all ranks")
    on_nonfinite: OnNonfinite = _setting("raise", _text(*ON_NONFINITE), "reaction to NaN or infinity on some rank")
    error_feedback: bool = _setting(True, _FLAG, "whether `allreduce(..., name=)` carries its error to the next one")
    retransmit_s: float = _setting(
        0.1, _seconds(0.001, 3600), "seconds before the first retransmission of a datagram (UDP)"
    )
    retransmit_min_s: float = _setting(
        0.05, _seconds(0.0001, 3600), "least seconds before a retransmission, once round trips are known (UDP)"
    )
    deadline_s: float = _setting(
        300.0,
        _seconds(0.01, 86400),
        "seconds before a phase of an all-reduce ends without a result; with hosts:// 1800, also the wait for ranks",
    )
    flush_after_s: float | None = _setting(
        None,
        _seconds(0.01, 86400),
        "seconds before a sum continues without missing ranks, if the job's min_quorum is met; default: never",
    )
    unreachable_s: float = _setting(
        10.0,
        _seconds(0.01, 86400),
        "seconds for which a switch may be unreachable; with hopsum://, at least membership_wait_s; with hosts:// 30",
    )
    membership_wait_s: float = _setting(
        60.0, _seconds(0, 86400), "seconds to wait for the job's membership file, or for its other ranks"
    )
    # A supervisor restarts a process with torch within half a minute.
    replacement_wait_s: float = _setting(
        30.0,
        _seconds(0, 86400),
        "seconds to wait for the replacement of a lost worker; 0: the others end at once (hopsum://); with hosts:// 0",
    )
    lease_s: float = _setting(
        60.0, _seconds(2, 86400), "seconds for which a rank or its host may be silent; rank 0's counts (hosts://)"
    )
    token: str = _setting("", _SECRET, "token of the controller's job (hopsum://)")
    token_file: str = _setting("", _text(), "file that has the token")
    ca_file: str = _setting("", _text(), "CA certificate to verify the controller (PEM)")
    certificate_file: str = _setting("", _text(), "client certificate, where the controller requires one (PEM)")
    key_file: str = _setting("", _text(), "private key of the client certificate (PEM)")
    ip: str = _setting("", _text(), "IPv4 address to send from; default: the address of the route")
    udp_port: int = _setting(0, _integer(0, 65535), "UDP port to send from (hopsum://); 0: any free one")
    link: str = _setting(
        "fast",
        _text("fast", "scapy"),
        "transport of datagrams; scapy's is slow and shows its packets (file:// and raw://)",
    )
    gso: str = _setting(
        "auto",
        _text("auto", "on", "off"),
        "many datagrams in one system call (GSO): if the kernel can, always, or never (UDP)",
    )
    overlap: bool = _setting(
        True, _FLAG, "whether the codec works on one vector while another is in flight; the same on all ranks"
    )
    pcap: str = _setting("", _text(), 'file for all packets, with link="scapy"')
    show: bool = _setting(False, _FLAG, 'whether one line a packet is printed, with link="scapy"')


class ConnectOptions(TypedDict, total=False):
    """The settings as keyword arguments, for type checkers. None is no value. `Config` has their meanings."""

    rank: int | None
    codec: str | None
    codec_options: dict[str, Any] | None
    backend: str | None
    codec_on: CodecOn | None
    threads: int | None
    local_group: str | None
    seed: int | None
    on_nonfinite: OnNonfinite | None
    error_feedback: bool | None
    retransmit_s: float | None
    retransmit_min_s: float | None
    deadline_s: float | None
    flush_after_s: float | None
    unreachable_s: float | None
    membership_wait_s: float | None
    replacement_wait_s: float | None
    lease_s: float | None
    token: str | None
    token_file: str | None
    ca_file: str | None
    certificate_file: str | None
    key_file: str | None
    ip: str | None
    udp_port: int | None
    link: str | None
    gso: str | None
    overlap: bool | None
    pcap: str | None
    show: bool | None


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The options of the hooks of `hopsum.torch` that the environment may have, with the defaults of DDP's hook."""

    error_feedback: bool = _setting(True, _FLAG, "whether the residual of a sum is added to the next gradient")
    on_nonfinite: OnNonfinite = _setting("raise", _text(*ON_NONFINITE), "reaction to NaN or infinity on some rank")
    small_tensor_bytes: int = _setting(0, _COUNT, "parameters of fewer bytes are not compressed")
    uncompressed: Sequence[str] = _setting((), _NAMES, "names or patterns of parameters that are not compressed")
    start_iter: int = _setting(0, _COUNT, "number of steps at the start that are not compressed")
    method: Method = _setting("hopsum", _text("hopsum", "auto"), "auto: the fastest, after a trial of each method")
    on_switch_lost: OnSwitchLost = _setting(
        "raise", _text("raise", "fall_back"), "fall_back: torch's process group averages after the loss of the switch"
    )
    log_every: int = _setting(0, _COUNT, "steps between two lines about their times; 0: no lines")
    codec_on: CodecOn = _setting("auto", _text(*CODEC_ON), "place where gradients are encoded; ranks may differ")
    low_rank: int | None = _setting(None, _RANK, "rank of the factors in which matrices are sent")
    low_rank_start: int = _setting(
        10, _COUNT, "with low_rank, number of steps at the start in which matrices are sent whole; with DiLoCo 1"
    )


def hook_environment() -> dict[str, Any]:
    """Return the options of hooks that the environment sets, parsed, by name. Options that are not set are left out.

    Raises ConfigError for a value that does not fit.
    """
    found = {}
    for each in fields(HookSettings):
        variable = _PREFIX + each.name.upper()
        if variable in os.environ:
            found[each.name] = _parsed(each.name, variable, os.environ[variable]).value
    return found


class SettingInfo(NamedTuple):
    """The description of one setting, in texts. The default is "none" or "empty" where there is no value."""

    name: str
    environment: str
    kind: str
    default: str
    meaning: str


def describe(settings: type[Config | HookSettings] = Config) -> list[SettingInfo]:
    """Return the description of each setting of `Config` or of `HookSettings`, in the order of the fields."""
    told = []
    for each in fields(settings):
        kind: _Kind = each.metadata["kind"]
        default = getattr(settings(), each.name)
        shown = {"": "none", "None": "none", "()": "none", "{}": "empty"}.get(str(default), str(default).lower())
        told.append(SettingInfo(each.name, _PREFIX + each.name.upper(), kind.name, shown, each.metadata["meaning"]))
    return told


class _Found(NamedTuple):
    name: str
    value: Any
    origin: str


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    url: str = "",
) -> Config:
    """Return the checked settings: keyword arguments before the environment before defaults.

    Options in a codec's name ("thc:bits=2") become `codec_options`. hosts:// has defaults of its own.

    Args:
        arguments: by name. None is no value.
        environment: in place of os.environ.
        url: the default of the setting `url`.

    Raises:
        ConfigError: an unknown name, also of a HOPSUM_ variable (the message has the nearest known one), a wrong type
            or range, or options in both the codec's name and `codec_options`.
    """
    environment = os.environ if environment is None else environment
    settings: dict[str, Any] = {}
    for found in (*_from_arguments(arguments or {}), *_from_environment(environment)):
        _require_fit(found)
        # Sources come in the order of their precedence: the first one stays.
        settings.setdefault(found.name, found.value)
    if "codec" in settings:
        _take_options(settings)
    if "rank" not in settings and "RANK" in environment:
        settings["rank"] = _parsed("rank", "RANK", environment["RANK"]).value
    settings.setdefault("url", url)
    if settings["url"].startswith("hosts:"):
        settings = _OF_HOSTS | settings
    return Config(**settings)


def _take_options(settings: dict[str, Any]) -> None:
    """Move options in the codec's name to `codec_options`. Raises ConfigError if both have options."""
    name, options = parse_codec(settings["codec"])
    if options and settings.get("codec_options"):
        raise ConfigError(
            f"codec {settings['codec']!r} names its options, and codec_options says {settings['codec_options']}: "
            "leave one of them out"
        )
    settings["codec"] = name
    if options:
        settings["codec_options"] = options


def _kind(found: _Found) -> _Kind:
    # Settings of both classes are of one kind.
    kinds = {each.name: each.metadata["kind"] for each in (*fields(Config), *fields(HookSettings))}
    if found.name not in kinds:
        raise ConfigError(f"{found.origin}: there is no setting {found.name!r}; {name_hint(found.name, kinds)}")
    kind: _Kind = kinds[found.name]
    return kind


def _from_arguments(arguments: Mapping[str, Any]) -> Iterator[_Found]:
    for name, value in arguments.items():
        if name in HookSettings.__dataclass_fields__ and name not in Config.__dataclass_fields__:
            raise ConfigError(f"argument {name}: it is an option of the hook, register_comm_hook(ddp, {name}=...)")
        if value is not None or name not in Config.__dataclass_fields__:
            yield _Found(name, value, f"argument {name}")


# Checked when a hook is made: a worker without a hook does not use them.
_OF_HOOKS: Final = frozenset(
    _PREFIX + each.name.upper() for each in fields(HookSettings) if each.name not in Config.__dataclass_fields__
)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Found]:
    for variable, text in environment.items():
        ours = variable.startswith(_PREFIX) and variable not in _OTHERS and variable not in _OF_HOOKS
        if ours and not _is_service_link(variable, text):
            yield _parsed(variable.removeprefix(_PREFIX).lower(), variable, text)


def _is_service_link(variable: str, text: str) -> bool:
    """Say whether Kubernetes set the variable, as it does in every pod for a Service such as hopsum-controller."""
    found = _SERVICE_LINK.fullmatch(variable)
    return found is not None and (found["kind"] != "PORT" or "://" in text)


def _parsed(name: str, variable: str, text: str) -> _Found:
    found = _Found(name, text, f"environment variable {variable}")
    kind = _kind(found)
    try:
        found = found._replace(value=kind.parse(text))
    except (ValueError, KeyError):
        raise _unfit(found, kind) from None
    _require_fit(found)
    return found


def _require_fit(found: _Found) -> None:
    kind = _kind(found)
    if kind is _CODEC and isinstance(found.value, str):
        try:
            parse_codec(found.value)
        except CodecError as error:
            raise ConfigError(f"{found.origin}: {error}") from None
    if not kind.fits(found.value):
        raise _unfit(found, kind)


def _unfit(found: _Found, kind: _Kind) -> ConfigError:
    shown = "of another kind" if kind.secret else f"{found.value!r:.80}"
    return ConfigError(f"{found.origin} is {shown}: {found.name} is {_article(kind.name)}")


def _article(kind: str) -> str:
    if kind[0] == '"' or kind.startswith("true"):
        return kind
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


# Messages of the controller carry these texts.
MAX_TEXT: Final = 200
"""Most characters of a compared value. A longer value is replaced by its beginning and a digest."""


def shared_settings(config: Config) -> dict[str, str]:
    """Return the settings and versions that all ranks of a job need in common, as ASCII texts by name.

    A text of more than MAX_TEXT characters is shortened, with a digest of the whole.
    """
    options = ", ".join(f"{name}={value!r}" for name, value in sorted(config.codec_options.items()))
    return {
        "codec": _told(f"{config.codec}({options})"),
        "seed": str(config.seed),
        "on_nonfinite": config.on_nonfinite,
        "overlap": str(config.overlap).lower(),
        # Two source trees may have the same version of hopsum.
        "side_channel_version": str(PEER_VERSION),
        "version": __version__,
    }


def _told(text: str) -> str:
    plain = ascii(text)[1:-1]
    if len(plain) <= MAX_TEXT:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    return f"{plain[: MAX_TEXT - 60]}... ({len(plain)} characters, SHA-256 {digest})"
