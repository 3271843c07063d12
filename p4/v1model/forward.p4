// SPDX-License-Identifier: Apache-2.0
// Plain layer-2 forwarding of everything that is not for the aggregation service.

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @brief("Send to one port.")
    action forward(port_t port) { standard_metadata.egress_spec = port; }
    @brief("Send to all ports of a multicast group but the one it came from.")
    action flood(group_t group) {
        standard_metadata.mcast_grp = group;
        meta.flood = 1;
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

// v1model does not prune a multicast to its ingress port.
control PruneFlood(in metadata_t meta, inout standard_metadata_t standard_metadata, out bit<1> is_pruned) {
    apply {
        is_pruned = 0;
        if (meta.flood == 1 && standard_metadata.egress_port == standard_metadata.ingress_port) {
            is_pruned = 1;
            mark_to_drop(standard_metadata);
        }
    }
}
