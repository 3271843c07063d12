// SPDX-License-Identifier: Apache-2.0
// The switches beside this one in a tree of switches. TreePeers (ingress) knows who may send PARTIAL, RESULT and STALE
// here: leaves below, the parent above. ParentRewrite (egress) addresses what goes up.
// A job with leaves makes this switch their parent; a job with a parent (Admit) makes it a leaf; a job may have both.
// A leaf has a number, which stands in packets where a worker's rank does; no worker and no other leaf of its parent has
// that number.

control TreePeers(inout headers_t hdr, inout metadata_t meta) {
    action tree_peer(port_t port, ipv4_t address) {
        meta.is_tree_peer = 1;
        meta.packet_contributors = hdr.hopsum.contributors;
        meta.worker_port = port;
        meta.worker_address = address;
        meta.worker_udp_port = HOPSUM_UDP_PORT;
    }
    @brief("A switch below, by its number in this job.")
    action leaf(bitmap_t leaf_bit, bitmap_t members, port_t port, ipv4_t address) {
        tree_peer(port, address);
        meta.worker_bit = leaf_bit;
        meta.members = members;
    }
    @brief("The switch above.")
    action parent(port_t port, ipv4_t address) { tree_peer(port, address); }

    @brief("Switches whose PARTIAL this job adds.")
    table leaves {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.worker     : exact @name("number");
        }
        actions = { leaf; NoAction; }
        const default_action = NoAction;
        size = MAX_JOBS * (bit<16>) MAX_WORKERS;
    }

    @brief("Switch whose RESULT and STALE this job takes.")
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

control ParentRewrite(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    @brief("Address a PARTIAL to the parent.")
    action to_parent(bit<16> number, mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip) {
        hdr.hopsum.worker = number;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.dst_port = HOPSUM_UDP_PORT;
    }
    action no_parent() { mark_to_drop(standard_metadata); }

    @brief("Addresses of the parent of a job.")
    table parent_rewrite {
        key = { hdr.hopsum.generation : exact @name("generation"); }
        actions = { to_parent; @defaultonly no_parent; }
        const default_action = no_parent;
        size = MAX_JOBS;
    }

    apply {
        parent_rewrite.apply();
        truncate((bit<32>) hdr.hopsum.length + FRAME_OVERHEAD_BYTES);
    }
}
