// SPDX-License-Identifier: Apache-2.0
// Is this frame for the switch's aggregation service? The switch answers neither ARP nor echo requests here: workers
// need a static neighbour entry for its address.

control Address(inout headers_t hdr, inout metadata_t meta) {
    @brief("An address of this switch.")
    action set_switch_mac(mac_t mac) {}

    @brief("The addresses of the aggregation service.")
    table switch_address {
        key = { hdr.ipv4.dst : exact @name("address"); }
        actions = { set_switch_mac; NoAction; }
        const default_action = NoAction;
        size = 4;
    }

    apply {
        if (switch_address.apply().hit) {
            meta.is_local = true;
        }
    }
}
