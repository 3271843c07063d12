// SPDX-License-Identifier: Apache-2.0
// Replies, in egress: ReplyHeader turns the hopsum header into a RESULT's, STALE's or STATE's and gives it new lower
// headers (those of the packet stayed in the deciding pass); Rewrite addresses every copy to its worker.

control ReplyHeader(inout headers_t hdr, in egress_intrinsic_metadata_t eg) {
    action set_l3_l4_headers() {
        hdr.ethernet.setValid();
        hdr.ethernet.ethertype = ETHERTYPE_IPV4;
        hdr.ipv4.setValid();
        hdr.ipv4.version = 4;
        hdr.ipv4.ihl = 5;
        hdr.ipv4.tos = 0;
        hdr.ipv4.identification = 0;
        hdr.ipv4.flags = 2;             // do not fragment
        hdr.ipv4.fragment_offset = 0;
        hdr.ipv4.ttl = REPLY_TTL;
        hdr.ipv4.protocol = PROTO_UDP;
        hdr.udp.setValid();
        hdr.udp.src_port = HOPSUM_UDP_PORT;
        hdr.udp.checksum = 0;           // 0 is "none" in IPv4
        hdr.hopsum.flags = 0;
    }
    action result() {
        hdr.hopsum.kind = KIND_RESULT;
        hdr.hopsum.held = 0;
        hdr.hopsum.length = LANES_BYTES;
        hdr.ipv4.total_length = LANES_BYTES + IPV4_OVERHEAD_BYTES;
        hdr.udp.length = LANES_BYTES + UDP_OVERHEAD_BYTES;
    }
    action result_to_all() {
        result();
        hdr.hopsum.worker = eg.egress_rid;      // the group's instances are ranks
    }
    action short_reply(bit<8> kind) {
        hdr.hopsum.kind = kind;
        hdr.hopsum.length = 0;
        hdr.ipv4.total_length = IPV4_OVERHEAD_BYTES;
        hdr.udp.length = UDP_OVERHEAD_BYTES;
    }

    @brief("Header of each kind of reply: constant entries.")
    table reply_header {
        key = { hdr.pass.reply : exact @name("reply"); }
        actions = { result; result_to_all; short_reply; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = {
            REPLY_RESULT : result_to_all();
            REPLY_ANSWER : result();
            REPLY_STALE  : short_reply(KIND_STALE);
            REPLY_STATE  : short_reply(KIND_STATE);
        }
    }

    apply {
        set_l3_l4_headers();
        reply_header.apply();
    }
}

control Rewrite(inout headers_t hdr, inout egress_intrinsic_metadata_for_deparser_t to_deparser) {
    @brief("Address a reply to a worker.")
    action to_worker(mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip, bit<16> dst_port) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.dst_port = dst_port;
    }
    action no_worker() { to_deparser.drop_ctl = 1; }

    @brief("Addresses of the workers of a job.")
    table rewrite {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.worker     : exact @name("worker");
        }
        actions = { to_worker; @defaultonly no_worker; }
        const default_action = no_worker;
        size = (bit<32>) MAX_JOBS * ((bit<32>) MAX_WORKERS + 1);    // and an observer
    }

    apply { rewrite.apply(); }
}
