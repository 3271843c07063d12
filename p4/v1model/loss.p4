// SPDX-License-Identifier: Apache-2.0
// Loss simulator: drops frames of a port with a probability from a table, on the way in and on the way out. Off
// for ports without an entry. One instance in ingress, one in egress; the program behind it never sees such a frame.

const bit<32> LOSS_PORTS = 512;

control Loss(in port_t port, out bit<1> is_lost) {
    @brief("Frames that simulated loss dropped, by port.")
    counter(LOSS_PORTS, CounterType.packets) lost;
    bit<32> drawn;

    @brief("Drop with probability threshold / 2^32.")
    action drop_with_probability(bit<32> threshold) {     // probability = threshold / 2^32
        random(drawn, (bit<32>) 0, (bit<32>) 0xffffffff);
        is_lost = (bit<1>) (drawn < threshold);
    }

    @brief("Simulated loss of a port; a port without an entry loses nothing.")
    table loss {
        key = { port : exact @name("port"); }
        actions = { drop_with_probability; NoAction; }
        const default_action = NoAction;
        size = LOSS_PORTS;
    }

    apply {
        is_lost = 0;
        loss.apply();
        if (is_lost == 1) {
            lost.count((bit<32>) port);
        }
    }
}
