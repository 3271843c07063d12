# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum job`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from hopsum.errors import HopsumError
from hopsum_cli.context import add_operator_arguments
from hopsum_cli.job import create, report
from hopsum_cli.operator import operator_client
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.watch.snapshots import workers_in_phase


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum job", description="Make, see and delete a controller's jobs.")
    words = parser.add_subparsers(required=True, metavar="WORD")
    making = _word(words, "create", create.SUMMARY, create.run)
    create.add_arguments(making)
    _word(words, "list", "all jobs, a line for each", _list)
    showing = _word(words, "show", "one job: members, leases, switch counters and events", _show)
    showing.add_argument("name", metavar="JOB", help="name of the job")
    moving = _word(words, "move", "give a job another switch; its workers continue there in the next generation", _move)
    moving.add_argument("name", metavar="JOB", help="name of the job")
    moving.add_argument("--from-switch", metavar="NAME", help="switch that the job leaves (default: its one switch)")
    moving.add_argument("--to-switch", metavar="NAME", help="switch that it goes to (default: one that has room)")
    rotating = _word(words, "rotate-token", "give a job another token; the previous one stays valid too", _rotate)
    rotating.add_argument("name", metavar="JOB", help="name of the job")
    create.add_token_file_argument(rotating)
    revoking = _word(words, "revoke-token", "let no worker join with the token before the present one", _revoke)
    revoking.add_argument("name", metavar="JOB", help="name of the job")
    deleting = _word(words, "delete", "end jobs and free their slots; one with workers only when told so", _delete)
    deleting.add_argument("names", metavar="JOB", nargs="+", help="names of the jobs")
    deleting.add_argument("--yes", action="store_true", help="answer yes: delete jobs with workers too")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return its exit status: 1 for a printed error, and for a deletion that was not confirmed."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except HopsumError as error:
        print(f"hopsum job: {error}", file=sys.stderr)
        return 1
    return status


def _word(words: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    word: argparse.ArgumentParser = words.add_parser(
        name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}."
    )
    add_operator_arguments(word)
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=run, parser=word)
    return word


def _list(options: argparse.Namespace) -> int:
    with operator_client(options) as client:
        jobs = [message_to_dict(job) for job in client.jobs()]
    if options.json:
        print(json.dumps({"jobs": jobs}))
    else:
        report.print_jobs(jobs, Console())
    return 0


def _show(options: argparse.Namespace) -> int:
    with operator_client(options) as client:
        job = message_to_dict(client.job(options.name))
    if options.json:
        print(json.dumps(job))
    else:
        report.print_job(job, Console())
    return 0


def _move(options: argparse.Namespace) -> int:
    with operator_client(options) as client:
        moved = message_to_dict(client.move(options.name, options.from_switch, options.to_switch))
    if options.json:
        print(json.dumps(moved))
    else:
        slots = f"slots {moved['slot_base']} to {moved['slot_base'] + moved['slots'] - 1}"
        print(f"job {options.name!r} moves from switch {moved['from_switch']} to {moved['to_switch']}: {slots}")
    return 0


def _rotate(options: argparse.Namespace) -> int:
    waiting = create.token_file(options.token_file, options.name, "no token was made")
    with operator_client(options) as client, waiting as (drawn, keep):
        token = client.rotate_token(options.name, drawn)
        keep(token)
    place = {"token": token} if options.token_file is None else {"token_file": str(options.token_file.absolute())}
    if options.json:
        print(json.dumps({"name": options.name, **place}))
    else:
        where = f"in {place['token_file']}" if options.token_file else f"not told again: {token}"
        print(f"the new token of job {options.name!r} is {where}; the one before is valid until it is revoked")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    with operator_client(options) as client:
        client.revoke_earlier_token(options.name)
    if options.json:
        print(json.dumps({"name": options.name}))
    else:
        print(f"job {options.name!r} has one token; workers that joined with the one before stay")
    return 0


def _delete(options: argparse.Namespace) -> int:
    """Delete one after the other. The first that fails ends it, and what is named before it is gone.

    Nothing is deleted where one of them has workers in it, unless --yes or a person at the terminal says so.
    """
    gone: list[str] = []
    with operator_client(options) as client:
        jobs = {job["name"]: job for job in map(message_to_dict, client.jobs())}
        # A job that is not there is no reason to ask: its deletion is an error of its own.
        busy = [jobs[name] for name in dict.fromkeys(options.names) if name in jobs and _inside(jobs[name])]
        if busy and not options.yes and not _confirmed(busy):
            return 1
        try:
            for name in options.names:
                client.delete(name)
                gone.append(name)
        finally:
            # An error names one job, and the jobs before it are deleted: say so.
            if options.json:
                print(json.dumps({"deleted": gone}))
            else:
                for name in gone:
                    print(f"job {name!r} is gone{_ended(jobs.get(name))}")
    return 0


def _confirmed(busy: Sequence[Mapping[str, Any]]) -> bool:
    """Ask whether jobs that workers are in shall end. Say what to do where there is nobody to be asked."""
    told = "; ".join(f"job {job['name']!r} is {job['state']}, with {_inside(job)} in it" for job in busy)
    if not sys.stdin.isatty():
        print(f"hopsum job: {told}; nothing was deleted: give --yes to end them all the same", file=sys.stderr)
        return False
    print(f"{told}. End {'it' if len(busy) == 1 else 'them'}? [y/N] ", end="", file=sys.stderr, flush=True)
    # Nothing, or anything else, is no.
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("hopsum job: nothing was deleted", file=sys.stderr)
    return False


def _inside(job: Mapping[str, Any]) -> str:
    """Return in words the workers that a job's end ends: in its generation or waiting for one. Empty for none."""
    ranks = [str(member["rank"]) for member in workers_in_phase(job, "in", "waiting", "over")]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else ""


def _ended(job: Mapping[str, Any] | None) -> str:
    """Describe the workers for which a deleted job ended, and its generation. Empty where it had none."""
    if job is None or not _inside(job):
        return ""
    return f": ended for {_inside(job)}" + (f", generation {job['generation']}" if job["generation"] else "")
