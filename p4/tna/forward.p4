// SPDX-License-Identifier: Apache-2.0
// Plain layer-2 forwarding of everything that is not for the aggregation service.

control Forward(inout headers_t hdr, inout metadata_t meta,
                inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    @brief("Send to one port.")
    action forward(port_t port) { to_tm.ucast_egress_port = port; }
    @brief("Send to all ports of a multicast group but the one it came from.")
    action flood(group_t group) {
        to_tm.mcast_grp_a = group;
        hdr.pass.step = STEP_FLOOD;
    }
    action no_route() { meta.drop_reason = DROP_NO_ROUTE; }

    @brief("Plain frames by destination MAC address; any other is dropped as NO_ROUTE.")
    table l2 {
        key = { hdr.ethernet.dst : exact @name("dst"); }
        actions = { forward; flood; @defaultonly no_route; }
        const default_action = no_route;
        size = 1024;
    }

    apply { l2.apply(); }
}

// A multicast is not pruned to its ingress port.
control PruneFlood(in headers_t hdr, in egress_intrinsic_metadata_t eg,
                   inout egress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply {
        if (hdr.pass.step == STEP_FLOOD && hdr.pass.port == eg.egress_port) {
            to_deparser.drop_ctl = 1;
        }
    }
}
