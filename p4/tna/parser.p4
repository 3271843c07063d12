// SPDX-License-Identifier: Apache-2.0
// A frame from a front port: Ethernet / IPv4 / UDP / hopsum, and anything else stops early and is a plain frame. A packet
// from a loop port has the header `pass` in front. Behind it are the headers of the frame, if the packet is not decided
// yet. Otherwise the hopsum header follows, and as much of the payload as half a pass takes. Each four bytes of codes are
// read twice, into the two words whose lanes they give.

// The allocator takes fields for mutually exclusive that no path of the parser extracts together, and puts them into
// the same containers. It does not see what is valid without being extracted: `pass` in front of a frame from a port.
#define READ_CODES(high, low) \
    hdr.lanes.w##high = packet.lookahead<bit<32>>(); \
    hdr.lanes.w##low = packet.lookahead<bit<32>>(); \
    packet.advance(32);
#define FROM_LOOP(port) port: parse_pass;
#define STRING(x) #x
#define INGRESS_32(n) @pa_container_size("ingress", STRING(hdr.lanes.w##n), 32)
#define INGRESS_16(n) @pa_container_size("ingress", STRING(hdr.lanes.w##n), 16)
#define EGRESS_32(n) @pa_container_size("egress", STRING(hdr.lanes.w##n), 32)
#define EGRESS_16(n) @pa_container_size("egress", STRING(hdr.lanes.w##n), 16)
#define PASS_NAMES \
    "hdr.pass.step", "hdr.pass.operation", "hdr.pass.table_id", "hdr.pass.reply", "hdr.pass.passes_left", \
    "hdr.pass.row", "hdr.pass.cell", "hdr.pass.group", "hdr.pass.padding", "hdr.pass.port"
#define LOWER_NAMES \
    "hdr.ethernet.dst", "hdr.ethernet.src", "hdr.ethernet.ethertype", "hdr.ipv4.version", "hdr.ipv4.ihl", \
    "hdr.ipv4.tos", "hdr.ipv4.total_length", "hdr.ipv4.identification", "hdr.ipv4.flags", "hdr.ipv4.fragment_offset", "hdr.ipv4.ttl", \
    "hdr.ipv4.protocol", "hdr.ipv4.checksum", "hdr.ipv4.src", "hdr.ipv4.dst", "hdr.udp.src_port", "hdr.udp.dst_port", \
    "hdr.udp.length", "hdr.udp.checksum"
@pa_no_overlay("ingress", PASS_NAMES, LOWER_NAMES)
// A byte of its own: the assembler of Tofino 2 cannot bring a register's 8-bit result into half of a wider container.
@pa_container_size("ingress", "slot_mismatch", 8)
INGRESS_WHOLE(INGRESS_32) INGRESS_SPLIT(INGRESS_16) EGRESS_WHOLE(EGRESS_32) EGRESS_SPLIT(EGRESS_16)
parser HopsumIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                           out ingress_intrinsic_metadata_t ig) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        meta.drop_reason = DROP_NONE;
        meta.header_reason = DROP_NONE;
        meta.step = STEP_FORWARD;
        meta.access = ACCESS_NONE;
        meta.requested_access = ACCESS_NONE;
        meta.checksum_error = false;
        meta.has_job = 0;
        meta.has_worker = 0;
        meta.has_table = 0;
        meta.from_loop = 0;
        meta.is_local = false;
        transition select(ig.ingress_port) {
            LOOP_PORTS(FROM_LOOP)
            default: parse_frame;
        }
    }

    state parse_frame {
        hdr.pass.setValid();
        hdr.pass.step = STEP_FORWARD;
        hdr.pass.operation = 0;
        hdr.pass.table_id = 0;
        hdr.pass.reply = 0;
        hdr.pass.passes_left = 0;
        hdr.pass.row = 0;
        hdr.pass.cell = 0;
        hdr.pass.group = 0;
        hdr.pass.padding = 0;
        hdr.pass.port = 0;
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = ipv4_checksum.verify();
        // version 4, no options, no "more fragments", offset 0
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTO_UDP): parse_udp;
            default: accept;
        }
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
        transition accept;
    }

    state parse_pass {
        packet.extract(hdr.pass);
        meta.from_loop = 1;
        meta.is_local = true;
        transition select(hdr.pass.step) {
            STEP_ADMIT: parse_ethernet;
            STEP_CODES: parse_before_codes;
            STEP_LANES: parse_before_lanes;
            STEP_HARVEST: parse_before_nothing;
            default: parse_last;
        }
    }

    state parse_last {
        packet.extract(hdr.hopsum);
        meta.access = ACCESS_LAST;
        transition accept;
    }

    state parse_before_codes {
        packet.extract(hdr.hopsum);
        hdr.lanes.setValid();
        CODES(READ_CODES)
        transition accept;
    }

    state parse_before_lanes {
        packet.extract(hdr.hopsum);
        packet.extract(hdr.lanes);
        transition accept;
    }

    state parse_before_nothing {
        packet.extract(hdr.hopsum);
        hdr.lanes.setValid();
        transition accept;
    }
}

parser HopsumEgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                          out egress_intrinsic_metadata_t eg) {
    state start {
        packet.extract(eg);
        packet.extract(hdr.pass);
        transition select(hdr.pass.step) {
            STEP_CODES: parse_before_codes;
            STEP_LANES: parse_before_lanes;
            STEP_HARVEST: parse_before_nothing;
            STEP_REPLY: parse_reply;
            default: accept;
        }
    }

    state parse_before_codes {
        packet.extract(hdr.hopsum);
        hdr.lanes.setValid();
        CODES(READ_CODES)
        transition accept;
    }

    state parse_before_lanes {
        packet.extract(hdr.hopsum);
        packet.extract(hdr.lanes);
        transition accept;
    }

    state parse_before_nothing {
        packet.extract(hdr.hopsum);
        hdr.lanes.setValid();
        transition accept;
    }

    state parse_reply {
        packet.extract(hdr.hopsum);
        transition accept;
    }
}
