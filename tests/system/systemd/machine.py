# SPDX-License-Identifier: Apache-2.0
"""A systemd as process 1 of namespaces of its own, over copies of the folders that it and its services write to.

It shares the network and the files of this machine, and changes none of them. It ends with `stop`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SYSTEMD = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.path.exists(path)), "")
START_S = 120.0
_CGROUPS = Path("/sys/fs/cgroup")
_SCRIPT = """\
set -eu
mount --make-rprivate /
for folder in /run /var/lib /var/cache /var/log /opt /usr/lib/sysusers.d; do mount -t tmpfs tmpfs "$folder"; done
cp -a /etc "$1/etc" && mount --bind "$1/etc" /etc
rm -rf /etc/systemd/system && mkdir /etc/systemd/system
for wants in sysinit sockets timers multi-user basic graphical local-fs; do
    folder=/usr/lib/systemd/system/$wants.target.wants
    if [ -d "$folder" ]; then mount -t tmpfs tmpfs "$folder"; fi
done
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\\nReadKMsg=no\\n' > /etc/systemd/journald.conf.d/test.conf
ln -s ../systemd-journald.service /usr/lib/systemd/system/sysinit.target.wants/
printf '[Unit]\\nRequires=multi-user.target\\n' > /etc/systemd/system/default.target
mount -t proc proc /proc
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi
export container=hopsum-test
exec "$2" --system
"""


class Machine:
    """The actions of `systemctl` and of its services. Raises RuntimeError where systemd does not come up."""

    def __init__(self, folder: Path) -> None:
        self._cgroups = [path / f"hopsum-{os.getpid()}" for path in _hierarchies()]
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
        joined = " && ".join(f"echo $$ > '{cgroup}/cgroup.procs'" for cgroup in self._cgroups)
        unshare = f"{joined} && exec unshare --mount --pid --fork --uts --ipc --cgroup --kill-child"
        command = f"{unshare} bash -c {shlex.quote(_SCRIPT)} machine '{folder}' '{SYSTEMD}'"
        self._log = folder / "machine.log"
        with self._log.open("wb") as output:
            self._child = subprocess.Popen(
                ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._init = self._wait_for_init()
        except BaseException:
            self.stop()
            raise

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a script in the machine as root; return its output."""
        command = ["nsenter", "-t", str(self._init), "-m", "-p", "-u", "-i", "-C", "bash", "-euc", script]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{script}: {done.stdout}{self.journal()}"
        return done.stdout

    def journal(self) -> str:
        """Return the last lines that systemd and services have logged."""
        return self.run("journalctl --no-pager -n 60", check=False)

    def shown(self, unit: str, what: str) -> str:
        """Return a property of a unit."""
        return self.run(f"systemctl show --value -p {what} {unit}").strip()

    def wait_for(self, script: str, what: str) -> None:
        """Wait until a script succeeds."""
        give_up_s = time.monotonic() + START_S
        while "yes" not in self.run(f"if {script} > /dev/null 2>&1; then echo yes; fi", check=False):
            assert time.monotonic() < give_up_s, f"no {what}: {self.journal()}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End systemd with all its services."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for cgroup in self._cgroups:
            _remove(cgroup)

    def _wait_for_init(self) -> int:
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s and self._child.poll() is None:
            for init in _children(self._child.pid):
                self._init = init
                if self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded"):
                    return init
            time.sleep(0.2)
        raise RuntimeError(f"systemd does not come up in namespaces here: {self._log.read_text()[-1000:].strip()}")


def _hierarchies() -> list[Path]:
    """Return the folders of cgroups below which systemd gets one of its own."""
    unified = (_CGROUPS / "cgroup.controllers").exists()
    return [_CGROUPS] if unified else [path for name in ("systemd", "unified") if (path := _CGROUPS / name).is_dir()]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _remove(cgroup: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while cgroup.exists() and time.monotonic() < give_up_s:
        for path in sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                path.rmdir()
        with suppress(OSError):
            cgroup.rmdir()
        time.sleep(0.05)


def why_not() -> str:
    """Return why no systemd can run here, empty if one may."""
    lacking = [name for name in ("unshare", "nsenter", "systemctl", "systemd-sysusers") if shutil.which(name) is None]
    if not SYSTEMD or lacking:
        return f"no systemd here: {', '.join(lacking) or 'systemd'} is missing"
    return "" if os.geteuid() == 0 else "namespaces for systemd need root"
