# SPDX-License-Identifier: Apache-2.0
"""`hopsum job create`: a job's tables from its codec, and its token into a file that only its owner reads."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from hopsum.codec import CodecName, job_tables, make_codec, parse_codec
from hopsum.codec.arguments import check_codec, switch_codec_argument
from hopsum.config import DEFAULT_CODEC
from hopsum.errors import HopsumError
from hopsum.protocol.stream import slots_for
from hopsum.rpc.channel import ControllerAddress, ControllerError, ControllerUnreachableError
from hopsum_base.units import rate_bits_per_s, real, time_s, whole
from hopsum_cli.operator import address_of, operator_client
from hopsum_wire import MAX_WORKERS
from hopsum_wire.control import UNIX, is_local
from hopsum_wire.control.values import message_to_dict

SUMMARY: Final = "make a job: its slots are reserved, and workers join with its token"
_SLOTS: Final = 32
_TOKEN_BYTES: Final = 32


class TokenFileError(HopsumError):
    """The file of a token cannot be written, and nothing was asked of the controller. Or its name was taken meanwhile.

    In the second case the message says in which file the token is.
    """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hopsum job create`."""
    parser.add_argument("name", metavar="JOB", help="name of the job")
    parser.add_argument(
        "--workers",
        type=_workers,
        required=True,
        metavar="N|MIN:MAX",
        help="number of workers, 1 to 64; MIN:MAX: it continues without lost workers while MIN are there, and with "
        "workers that come late",
    )
    parser.add_argument(
        "--replace",
        type=real(0),
        metavar="SECONDS",
        help="seconds for which a generation of MIN:MAX workers waits for one that is gone (default: the lease)",
    )
    _add_slots(parser)
    parser.add_argument(
        "--codec",
        type=switch_codec_argument,
        help="codec of the workers, as in thc:bits=2; selects the lookup table (default: thc)",
    )
    parser.add_argument("--quorum", type=whole(1), metavar="N", help="workers that complete a sum (default: all)")
    parser.add_argument(
        "--min-quorum",
        type=whole(1),
        metavar="N",
        help="workers required when a worker flushes a late round (default 1)",
    )
    parser.add_argument(
        "--switch", metavar="NAME", help="switch of the job (default: the one with the most free slots)"
    )
    parser.add_argument(
        "--shards",
        type=_shards,
        default=1,
        metavar="N|NAME,NAME,...",
        help="aggregate over switches side by side, each with a share of every vector: their number, or their names",
    )
    parser.add_argument(
        "--tree",
        action="store_true",
        help="aggregate over a spine (--switch) and its leaves even where one switch would do",
    )
    parser.add_argument(
        "--lease",
        type=real(0, above=True),
        metavar="SECONDS",
        help="seconds before a silent worker is evicted (default: the controller's)",
    )
    add_token_file_argument(parser)


def _add_slots(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("slots", "how many packets each worker may have on their way")
    slots = group.add_mutually_exclusive_group()
    slots.add_argument("--slots", type=whole(1), metavar="N", help=f"slots of the switch (default {_SLOTS})")
    slots.add_argument(
        "--round-trip",
        type=time_s,
        metavar="TIME",
        help="round-trip time between a worker and the switch, like 10ms: the job takes the slots that keep its links "
        "busy for so long",
    )
    group.add_argument(
        "--rate",
        type=rate_bits_per_s,
        default=1e9,
        metavar="RATE",
        help="rate of the links, for --round-trip (default 1gbit)",
    )


def _slots(options: argparse.Namespace) -> int:
    """Return the slots that are asked for, or those that the links need."""
    if options.round_trip is None:
        return _SLOTS if options.slots is None else int(options.slots)
    shards = options.shards if isinstance(options.shards, int) else len(options.shards)
    return slots_for(options.rate, options.round_trip, max(1, shards))


def add_token_file_argument(parser: argparse.ArgumentParser) -> None:
    """Add --token-file."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help="new file of mode 0600 for the job's token (default: the token is printed)",
    )


class WorkerNumbers(NamedTuple):
    """The numbers of workers that a job may have: any from `least` to `most`, or only `most` if `least` is None."""

    least: int | None
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}:{self.most}"


def _workers(text: str) -> WorkerNumbers:
    """Read N, or MIN:MAX. Numbers that no job has are refused. Raises ArgumentTypeError."""
    numbers = re.fullmatch(r"(?:([0-9]+):)?([0-9]+)", text)
    if numbers is None:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no number of workers: write 4, or 2:8 for 2 to 8")
    read = whole(1, MAX_WORKERS)
    return WorkerNumbers(None if numbers[1] is None else read(numbers[1]), read(numbers[2]))


def run(options: argparse.Namespace) -> int:
    """Make the job, write its token file if asked for, print how workers join, and return 0.

    Raises HopsumError: no job was made, none is known to be, or its token is in another file, which the message names.
    """
    tables = _tables(options)
    codec = parse_codec(options.codec) if options.codec else CodecName("", {})
    address = address_of(options)
    # The file is written first: a token that could not be written down would be lost, and its job with it.
    with operator_client(options) as client, token_file(options.token_file, options.name) as (token, keep):
        made = client.create(
            options.name,
            options.workers.most,
            _slots(options),
            **tables,
            quorum=options.quorum,
            min_quorum=options.min_quorum,
            switch=options.switch,
            lease_s=options.lease,
            tree=options.tree,
            codec=codec.name,
            codec_options=codec.options,
            shards=options.shards,
            min_workers=options.workers.least,
            replace_s=options.replace,
            token=token,
        )
        keep(made.token)
    # No URL for a unix socket: workers on other hosts could not follow it.
    url = None if address.target.startswith(UNIX) else _url(address, options.name, options.token_file)
    values = {**message_to_dict(made), "url": url}
    if options.token_file is not None:
        values["token_file"] = str(options.token_file.absolute())
        del values["token"]
    print(json.dumps(values) if options.json else _in_words(values, options))
    return 0


def _tables(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    if options.codec is None:
        options.codec = DEFAULT_CODEC
    check_codec(options.parser, options.codec, options.workers.most)
    # numpy: only the tables are wanted, and the other back ends compile for seconds.
    return job_tables(make_codec(options.codec, workers=options.workers.most, backend="numpy"))


def _in_words(values: dict[str, Any], options: argparse.Namespace) -> str:
    lines = [f"job {values['name']!r} on {_places(values, is_sharded=options.shards != 1)}, forming"]
    if "token" in values:
        lines.append(f"token, not told again: {values['token']}")
    else:
        lines.append(f"its token is in {values['token_file']}")
    if options.codec:
        lines.append(f"its codec is {options.codec}: workers take the codec from the job")
    if values["url"]:
        lines.append(f"its {options.workers} workers connect to {values['url']}")
    return "\n".join(lines)


def _places(values: dict[str, Any], *, is_sharded: bool) -> str:
    """Return its switches with its slots there."""
    *others, last = [
        f"{switch}: slots {part['slot_base']} to {part['slot_base'] + part['slots'] - 1}"
        for switch, part in zip(values["switches"], values["parts"] or [values], strict=True)
    ]
    then = "then " if others and not is_sharded else ""
    return "; ".join([*others, f"{then}{last}"])


def _shards(text: str) -> int | tuple[str, ...]:
    """Return a number of shards, or the names of their switches."""
    return whole(1)(text) if text.isdecimal() else tuple(name.strip() for name in text.split(","))


def _url(address: ControllerAddress, job: str, token_file: Path | None) -> str:
    query = [] if token_file is None else [f"token_file={quote(str(token_file.absolute()))}"]
    if address.ca_file is not None:
        query.append(f"ca={quote(str(address.ca_file.absolute()))}")
    # The URL says only what a worker would not assume: no TLS on this machine, TLS to any other.
    elif address.tls == is_local(address.target):
        query.append(f"tls={'on' if address.tls else 'off'}")
    return f"hopsum://{address.target}/{job}{'?' if query else ''}{'&'.join(query)}"


@contextmanager
def token_file(
    path: Path | None, job: str, undone: str = "no job was made"
) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Draw a job's token and write it to a file before the block asks the controller for anything.

    Yields the token, and a function that puts the token of the answer in its place. Where the block ends without an
    answer, the file waits under a hidden name: the next command of the same job and path takes its token, so the
    controller answers it as it would have answered this one. The end of the block then prints that. A refusal of the
    controller removes the file of this command.

    Without a `path` no file is written. `undone` begins the message of an error. Raises TokenFileError, before the
    block, for a file that exists or cannot be written, and in the function, if another file has taken its name.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    if path is None:
        yield token, lambda _: None
        return
    waiting = path.with_name(f".{path.name}.{quote(job, safe='')}")
    earlier = None
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        earlier = _read(waiting)
        if earlier is None:
            _write(waiting, token)
    except OSError as error:
        raise TokenFileError(
            f"{undone}: token file {path}: {error}; give one that is not there yet, and can be written"
        ) from error

    def keep(told: str) -> None:
        if told != (earlier or token):
            # A controller of before draws each token itself: the file has room for it already.
            waiting.write_text(f"{told}\n", encoding="ascii")
        try:
            _rename_to_new(waiting, path)
        except FileExistsError as error:
            raise TokenFileError(f"the token is in {waiting}: {path} has come meanwhile") from error
        except OSError as error:
            raise TokenFileError(f"the token is in {waiting}: {path} cannot be written: {error}") from error

    try:
        yield earlier or token, keep
    except (ControllerError, KeyboardInterrupt) as error:
        # A refusal means that the token of this command is nobody's. That of an earlier one may be the job's.
        if earlier is None and not isinstance(error, (ControllerUnreachableError, KeyboardInterrupt)):
            waiting.unlink()
        else:
            told = "give the same command again to learn whether it is the job's, or remove the file to begin anew"
            print(f"a token waits in {waiting}: {told}", file=sys.stderr)
        raise


def _rename_to_new(waiting: Path, path: Path) -> None:
    """Rename a file. Raises FileExistsError if there is a file at `path`, which stays as it is, and other OSErrors."""
    try:
        # A link, since renaming would replace a file that has come meanwhile.
        os.link(waiting, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links: an empty file takes the name, and renaming replaces only this file.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            waiting.rename(path)
        except OSError:
            # The empty file would refuse the same command, given again.
            path.unlink()
            raise
    else:
        waiting.unlink()


def _read(path: Path) -> str | None:
    """Return the token of an earlier command, None where none waits. Raises OSError for a file that others may know."""
    try:
        # Another user may have put a file or a link there, in a folder that users share.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="ascii") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "others may know what is in it", str(path))
        return file.read().strip() or None


def _write(path: Path, token: str) -> None:
    """Write a token to a new file of mode 0600, on disk when this returns. Nothing is left where that fails."""
    # O_EXCL: a link that another user has put there is never followed. The mode holds from the first byte on.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            print(token, file=file, flush=True)
            # Some file systems find that the disk is full only now.
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise
