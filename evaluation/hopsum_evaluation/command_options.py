# SPDX-License-Identifier: Apache-2.0
"""Options and tables of several commands: the link of worker processes, figures by row."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.table import Table

from hopsum.transport.scapy_link import PacketView


def add_link_options(parser: argparse.ArgumentParser) -> None:
    """Add --link, --pcap and --show. After parsing, `check_link_options` has to check them."""
    parser.add_argument(
        "--link",
        choices=("udp", "scapy"),
        default="udp",
        help="link of the workers: UDP sockets, or scapy packets, which are slow and can be seen (default %(default)s)",
    )
    parser.add_argument(
        "--pcap", type=Path, metavar="DIR", help="folder for each worker's packets, worker-RANK.pcap (--link scapy)"
    )
    parser.add_argument("--show", action="store_true", help="print one line a packet on stderr (--link scapy)")


def check_link_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with a message and status 2 unless the options of `add_link_options` fit. Make the folder of --pcap.

    --link scapy needs the package scapy. --pcap and --show need --link scapy.
    """
    if options.link != "scapy" and (options.pcap is not None or options.show):
        parser.error("--pcap and --show: only --link scapy has packets to show; add --link scapy")
    if options.link == "scapy" and find_spec("scapy") is None:
        parser.error("--link scapy: scapy is not installed; pip install 'hopsum[scapy]'")
    if options.pcap is not None:
        try:
            options.pcap.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--pcap {options.pcap}: {error.strerror}")


def view_of(pcap: Path | None, rank: int, *, show: bool) -> PacketView:
    """Return the view of a worker's packets: they go to worker-RANK.pcap in folder `pcap`, and are printed with `show`.

    None: no file.
    """
    return PacketView(pcap=None if pcap is None else pcap / f"worker-{rank}.pcap", show=show)


def figure_table(title: str, *columns: str) -> Table:
    """Make a table without rows, whose first column names a row and whose other columns have figures."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
