# SPDX-License-Identifier: Apache-2.0
"""The loss simulator: frames of a port lost by chance, on the way in and out; off until somebody sets it.

Probabilities of 1 are certainty but for one frame in 2^32. While a port loses frames there are no barriers on it:
what was lost is counted, so a case waits until every frame it sent has come out or is counted, and switches the
simulator off before it looks for anything more.
"""

from __future__ import annotations

import math
import time

from hopsum_controlplane.addresses import mac_to_int
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import BROADCAST_MAC, PORTS, station_mac
from hopsum_ptf.frames import lanes32, plain, update
from hopsum_ptf.port_links import OutputFrame
from hopsum_wire import Drop, State

SENDER = mac_to_int(station_mac(1))
FLOODED = plain(BROADCAST_MAC, SENDER, bytes(46))
TO_6 = plain(mac_to_int(station_mac(6)), SENDER, bytes(46))
_COUNTED_S = 60.0
_POLL_S = 0.02
_PROBABILITY_OF_ALARM = 1e-9


class _Loss(SwitchCase):
    """Frames that are lost."""

    def lost(self) -> dict[int, tuple[int, int]]:
        """Return lost frames by port: on the way in, on the way out."""
        return {port: tuple(both) for port, both in self.controller.loss_counters().items()}

    def wait_until_lost(self, expected: dict[int, tuple[int, int]]) -> None:
        """Wait until the switch has counted exactly these."""
        deadline = time.monotonic() + _COUNTED_S
        while self.lost() != expected and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.assertEqual(self.lost(), expected)

    def swallowed(self, port: int, frame: bytes, times: int = 1) -> None:
        """Send a frame that goes no further than into its port; the oracle does not hear of it."""
        for _ in range(times):
            self.vanished(port, frame)
            self.oracle.drops[Drop.SIMULATED] += 1

    def vanished(self, port: int, frame: bytes) -> None:
        """Send a frame of which nothing comes out."""
        self.links.send(port, frame)
        self.record(port, frame, [])

    def delivered(self, port: int, frame: bytes, but: int) -> list[OutputFrame]:
        """Send a frame whose copies arrive everywhere but at port `but`."""
        _, predicted = self.oracle.explain_frame(port, frame)
        expected = sorted(OutputFrame(*output) for output in predicted if output[0] != but)
        self.links.send(port, frame)
        arrived = sorted(output for out in sorted(o.port for o in expected) for output in self.links.receive(out))
        self.assertEqual(arrived, expected)
        self.record(port, frame, arrived)
        return arrived


class OffUntilItIsSet(_Loss):
    """Nothing is lost on any port, and nothing counted."""

    def runTest(self) -> None:
        for port in PORTS:
            self.forwarded(port, FLOODED, [other for other in PORTS if other != port])
        self.assertEqual(self.lost(), {})


class AllThatComesIn(_Loss):
    """One port loses everything that comes in, and no other does; afterwards it is as before."""

    def runTest(self) -> None:
        job = self.job(2)
        self.controller.set_loss(0, ingress_probability=1)
        self.swallowed(0, update(job, 0, lanes32(1)), times=3)
        self.swallowed(0, FLOODED, times=2)
        self.wait_until_lost({0: (5, 0)})
        self.controller.set_loss(0)
        self.links.check_empty()
        self.holds(job, job.spec.workers[1], State.EMPTY)
        self.added(job, 0, lanes32(1))
        self.assert_lanes(self.completed(job, 1, lanes32(2)), 3)
        self.assertEqual(self.lost(), {0: (5, 0)})


class OtherPortsLoseNothing(_Loss):
    """While one port loses all, everybody else's frames pass, also those to it."""

    def runTest(self) -> None:
        self.controller.set_loss(3, ingress_probability=1)
        self.swallowed(3, TO_6)
        for port in (1, 2, 7):
            self.delivered(port, FLOODED, but=-1)
        self.wait_until_lost({3: (1, 0)})
        self.controller.clear_losses()


class AllThatGoesOut(_Loss):
    """One port loses its copy of every multicast; the switch knows the round complete, and answers later."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 1, lanes32(1))
        self.added(job, 2, lanes32(10))
        self.controller.set_loss(2, egress_probability=1)
        self.assertEqual(len(self.delivered(0, update(job, 0, lanes32(100)), but=2)), 2)
        self.assertEqual(len(self.delivered(1, FLOODED, but=2)), len(PORTS) - 2)
        self.wait_until_lost({2: (0, 2)})
        self.controller.clear_losses()
        self.links.check_empty()
        self.assert_lanes(self.answered(job, 2, lanes32(10)), 111)
        self.assertEqual(self.lost(), {2: (0, 2)})


class BothWaysOfSeveralPorts(_Loss):
    """Each direction of each port has its own probability and its own counter."""

    def runTest(self) -> None:
        self.controller.set_loss(4, ingress_probability=1)
        self.controller.set_loss(5, egress_probability=1)
        self.controller.set_loss(6, ingress_probability=1, egress_probability=1)
        for port in (4, 6):
            self.swallowed(port, FLOODED)
        self.vanished(1, TO_6)
        self.vanished(5, TO_6)
        self.wait_until_lost({4: (1, 0), 6: (1, 2)})
        self.controller.set_loss(6, ingress_probability=1)
        self.delivered(5, TO_6, but=-1)
        self.controller.clear_losses()
        self.links.check_empty()


class Replaced(_Loss):
    """Set again, the last probability counts; 0 ends it."""

    def runTest(self) -> None:
        for _ in range(2):
            self.controller.set_loss(1, ingress_probability=0.5)
            self.controller.set_loss(1, ingress_probability=1)
            self.swallowed(1, TO_6)
            self.wait_until_lost({1: (self.oracle.drops[Drop.SIMULATED], 0)})
            self.controller.set_loss(1, ingress_probability=0)
            self.forwarded(1, TO_6, [6])


class _Half(_Loss):
    """Half of many frames are lost; a correct switch is outside of the bounds less than once in 10^9 runs."""

    recorded = False
    frames = 600

    def halved(self, *, ingress: float, egress: float, draws_in: bool) -> None:
        """Send frames from port 1 to port 6, count what arrives and what is lost, and compare with a half."""
        self.controller.set_loss(1, ingress_probability=ingress)
        self.controller.set_loss(6, egress_probability=egress)
        arrived = 0
        for sent in range(20, self.frames + 1, 20):
            for _ in range(20):
                self.links.send(1, TO_6)
            arrived += self._settle(sent - arrived)
        lost_in, lost_out = self.lost().get(1, (0, 0))[0], self.lost().get(6, (0, 0))[1]
        self.assertEqual(arrived + lost_in + lost_out, self.frames, "every frame arrived or was counted")
        lost, spared = (lost_in, lost_out) if draws_in else (lost_out, lost_in)
        # Hoeffding: of n draws the count is further from n / 2 than this with at most the given probability
        bound = math.sqrt(self.frames * math.log(2 / _PROBABILITY_OF_ALARM) / 2)
        self.assertEqual(spared, 0)
        self.assertLess(abs(lost - self.frames / 2), bound, f"{lost} of {self.frames} lost")
        self.controller.clear_losses()
        self.oracle.drops[Drop.SIMULATED] += lost_in

    def _settle(self, expected: int) -> int:
        """Wait until a burst has arrived or is counted, for queues are short; return how many arrived."""
        arrived, deadline = 0, time.monotonic() + _COUNTED_S
        while arrived + self._gone() < expected and time.monotonic() < deadline:
            arrived += self.links.drain(6)
        return arrived

    def _gone(self) -> int:
        return sum(sum(both) for both in self.lost().values())


class HalfOfWhatComesIn(_Half):
    """Probability 1/2 on the way in, over 600 frames."""

    def runTest(self) -> None:
        self.halved(ingress=0.5, egress=0, draws_in=True)


class HalfOfWhatGoesOut(_Half):
    """Probability 1/2 on the way out, over 600 frames."""

    def runTest(self) -> None:
        self.halved(ingress=0, egress=0.5, draws_in=False)
