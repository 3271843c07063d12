// SPDX-License-Identifier: Apache-2.0
// A switch's relatives in a tree of switches. Relatives (ingress) knows who may send PARTIAL, RESULT and STALE here: leaves
// below, the parent above. Climb (egress) addresses what goes up.
// A job with leaves makes this switch their parent; a job with a parent (Admit) makes it a leaf; a job may have both. A leaf
// has a number, which stands in packets where a worker's rank does; no worker and no other leaf of its parent has it.

control Relatives(inout headers_t hdr, inout metadata_t meta) {
    action relative(bit<9> port, ipv4_t address) {
        meta.is_relative = 1;
        meta.inside = hdr.hopsum.contributors;
        meta.worker_port = port;
        meta.worker_address = address;
        meta.worker_udp_port = HOPSUM_UDP_PORT;
    }
    action leaf(bitmap_t leaf_bit, bitmap_t members, bit<9> port, ipv4_t address) {
        relative(port, address);
        meta.worker_bit = leaf_bit;
        meta.members = members;
    }
    action parent(bit<9> port, ipv4_t address) { relative(port, address); }

    table leaves {
        key = {
            hdr.hopsum.generation  : exact @name("generation");
            hdr.hopsum.worker : exact @name("number");
        }
        actions = { leaf; NoAction; }
        const default_action = NoAction;
        size = MAX_JOBS * (bit<16>) MAX_WORKERS;
    }

    table parents {
        key = { hdr.hopsum.generation : exact @name("generation"); }
        actions = { parent; NoAction; }
        const default_action = NoAction;
        size = MAX_JOBS;
    }

    apply {
        if (hdr.hopsum.isValid() && hdr.hopsum.kind != KIND_UPDATE) {
            if (hdr.hopsum.kind == KIND_PARTIAL) {
                leaves.apply();
            } else if (hdr.hopsum.kind == KIND_RESULT || hdr.hopsum.kind == KIND_STALE) {
                parents.apply();
            }
        }
    }
}

control Climb(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    action to_parent(bit<16> number, mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip) {
        hdr.hopsum.worker = number;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.dst_port = HOPSUM_UDP_PORT;
    }
    action no_parent() { mark_to_drop(standard_metadata); }

    table climb {
        key = { hdr.hopsum.generation : exact @name("generation"); }
        actions = { to_parent; @defaultonly no_parent; }
        const default_action = no_parent;
        size = MAX_JOBS;
    }

    apply {
        climb.apply();
        truncate((bit<32>) hdr.hopsum.length + FRAME_OVERHEAD_BYTES);
    }
}
