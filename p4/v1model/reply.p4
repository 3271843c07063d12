// SPDX-License-Identifier: Apache-2.0
// Replies. ReplyHeader (ingress) turns the packet into a RESULT, STALE, STATE or PARTIAL, writes all that is the same in
// every copy, and chooses multicast or unicast. Rewrite (egress) addresses every copy to its worker or leaf.

control ReplyHeader(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action result() {
        hdr.hopsum.kind = KIND_RESULT;
        hdr.hopsum.held = 0;
        hdr.hopsum.length = LANES_BYTES;
    }

    action result_of_codes() {
        hdr.hopsum.kind = KIND_RESULT;
        hdr.hopsum.held = 0;            // Requantize has set the length
    }

    action partial() {
        hdr.hopsum.kind = KIND_PARTIAL;
        hdr.hopsum.held = 0;
        hdr.hopsum.length = LANES_BYTES;
    }

    action stale() {
        hdr.hopsum.kind = KIND_STALE;
        hdr.hopsum.held = meta.held;
        hdr.hopsum.length = 0;
        hdr.lanes.setInvalid();         // codes are gone since Lookup
    }

    action state_() {
        hdr.hopsum.kind = KIND_STATE;
        hdr.hopsum.op = meta.held_op;
        hdr.hopsum.held = meta.held;
        hdr.hopsum.count = meta.state;
    }

    action set_l3_l4_headers() {
        meta.new_ipv4 = 1;
        hdr.ipv4.tos = 0;
        hdr.ipv4.identification = 0;
        hdr.ipv4.flags = 2;             // do not fragment
        hdr.ipv4.ttl = REPLY_TTL;
        hdr.ipv4.total_length = hdr.hopsum.length + IPV4_OVERHEAD_BYTES;
        hdr.udp.src_port = HOPSUM_UDP_PORT;
        hdr.udp.length = hdr.hopsum.length + UDP_OVERHEAD_BYTES;
        hdr.udp.checksum = 0;           // the payload changed; 0 is "none" in IPv4
    }

    apply {
        if (meta.reply == REPLY_NONE) {
            mark_to_drop(standard_metadata);
        } else {
            hdr.hopsum.contributors = meta.contributors;
            if (meta.reply == REPLY_RESULT || meta.reply == REPLY_ANSWER) {
                hdr.hopsum.flags = 0;
                if (hdr.lanes.isValid()) {
                    result();
                } else {
                    result_of_codes();
                }
            } else if (meta.reply == REPLY_PARTIAL) {
                partial();              // FLUSH goes up
            } else {
                hdr.hopsum.flags = 0;
                if (meta.reply == REPLY_STATE) {
                    state_();
                } else {
                    stale();
                }
            }
            set_l3_l4_headers();
            if (meta.reply == REPLY_RESULT || meta.reply == REPLY_RELAY) {
                standard_metadata.mcast_grp = meta.group;
            } else if (meta.reply == REPLY_PARTIAL) {
                standard_metadata.egress_spec = meta.parent_port;
            } else {
                standard_metadata.egress_spec = standard_metadata.ingress_port;
            }
        }
    }
}

control Rewrite(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @brief("Address a reply to a worker or a leaf.")
    action to_worker(mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip, bit<16> dst_port) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.dst_port = dst_port;
    }
    action no_worker() { mark_to_drop(standard_metadata); }

    @brief("Addresses of the workers and leaves of a job.")
    table rewrite {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.worker     : exact @name("worker");
        }
        actions = { to_worker; @defaultonly no_worker; }
        const default_action = no_worker;
        size = MAX_JOBS * ((bit<16>) MAX_WORKERS + 1);
    }

    apply {
        if (meta.reply == REPLY_RESULT || meta.reply == REPLY_RELAY) {
            hdr.hopsum.worker = standard_metadata.egress_rid;   // the group's instances are ranks and leaves' numbers
        }
        rewrite.apply();
        // Bytes behind the parsed headers (an Ethernet trailer, padding) would survive the deparser.
        truncate((bit<32>) hdr.hopsum.length + FRAME_OVERHEAD_BYTES);
    }
}

control HopsumComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.new_ipv4 == 1,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
              hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
