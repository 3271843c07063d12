// SPDX-License-Identifier: Apache-2.0
// Ethernet / IPv4 / UDP / hopsum / payload, and as much of ARP and ICMP as Address needs. Anything else stops early
// and is forwarded as a plain frame. A payload is extracted only if kind, op and length announce it, so that a
// parser error means one thing: the frame ends before its headers say. (v1model does not drop on a parser error;
// Admit does.)

parser HopsumParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        // version 4, no options, no "more fragments", offset 0
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTO_UDP): parse_udp;
            (4, 5, 0 &&& 1, 0, PROTO_ICMP): parse_icmp;
            default: accept;
        }
    }

    state parse_icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            HOPSUM_UDP_PORT: parse_hopsum;
            default: accept;
        }
    }

    state parse_hopsum {
        packet.extract(hdr.hopsum);
        transition select(hdr.hopsum.version, hdr.hopsum.kind, hdr.hopsum.op, hdr.hopsum.length) {
            (WIRE_VERSION, KIND_UPDATE, OP_LOOKUP_ADD8, CODES8_BYTES): parse_codes8;
            (WIRE_VERSION, KIND_UPDATE, OP_LOOKUP_ADD16, CODES16_BYTES): parse_codes16;
            (WIRE_VERSION, KIND_UPDATE, OP_LOOKUP_ADD_LOOKUP4, CODES8_BYTES): parse_codes8;
            (WIRE_VERSION, KIND_UPDATE, OP_LOOKUP_ADD_LOOKUP3, CODES3_BYTES): parse_codes3;
            (WIRE_VERSION, KIND_UPDATE, OP_LOOKUP_ADD_LOOKUP2, CODES2_BYTES): parse_codes2;
            (WIRE_VERSION, KIND_UPDATE, OP_ADD8, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_UPDATE, OP_ADD16, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_UPDATE, OP_ADD32, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_UPDATE, OP_OR, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_UPDATE, OP_MAX32, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_PARTIAL, OP_LOOKUP_ADD_LOOKUP4, LANES_BYTES): parse_lanes;
            (WIRE_VERSION, KIND_PARTIAL, _, LANES_BYTES): parse_sum;
            (WIRE_VERSION, KIND_RESULT, OP_LOOKUP_ADD_LOOKUP4, CODES8_BYTES): parse_codes8;
            (WIRE_VERSION, KIND_RESULT, _, LANES_BYTES): parse_sum;
            default: accept;
        }
    }

    // Lanes, whatever the op: they were looked up where the packet first came from.
    state parse_sum {
        transition select(hdr.hopsum.op) {
            0: accept;
            0 &&& 0xf8: parse_lanes;        // 1 .. OP_MAX32
            default: accept;
        }
    }

    state parse_codes8 {
        packet.extract(hdr.codes8);
        transition accept;
    }

    state parse_codes16 {
        packet.extract(hdr.codes16);
        transition accept;
    }

    state parse_lanes {
        packet.extract(hdr.lanes);
        transition accept;
    }

    state parse_codes3 {
        packet.extract(hdr.codes3);
        transition accept;
    }

    state parse_codes2 {
        packet.extract(hdr.codes2);
        transition accept;
    }
}

control HopsumVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
              hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
