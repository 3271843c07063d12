// SPDX-License-Identifier: Apache-2.0
// Admission: is this packet well formed, and from a worker of a live generation? The first check that fails names the
// drop reason; nothing behind Admit sees such a packet.
// Only the generation ties a packet to a job: a generation that is not in `jobs` does not exist (rule S1).
// In a tree of switches a sender may be a leaf or the parent (tree.p4): then TreePeers has said who it is, and kinds exist
// that nobody else may send. A job with a parent is a leaf's.
// An observer is an entry of `workers` without a bit: it may PROBE and nothing else.

control Admit(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    @brief("A job of which this switch is the root: registers, quorum, multicast group.")
    action job(bit<16> job_index, bit<16> slot_base, bit<16> slots, bit<8> quorum, bit<8> min_quorum, group_t group) {
        meta.job_index = job_index;
        meta.slot_base = slot_base;
        meta.slots = slots;
        meta.quorum = quorum;
        meta.min_quorum = min_quorum;
        meta.group = group;
    }
    @brief("A job of which this switch is a leaf.")
    action leaf_job(bit<16> job_index, bit<16> slot_base, bit<16> slots, bit<8> quorum, bit<8> min_quorum, group_t group,
                    port_t parent_port) {
        job(job_index, slot_base, slots, quorum, min_quorum, group);
        meta.has_parent = 1;
        meta.parent_port = parent_port;
    }
    action unknown_generation() { meta.drop_reason = DROP_UNKNOWN_GENERATION; }

    @brief("Live generations; any other is dropped as UNKNOWN_GENERATION.")
    table jobs {
        key = { hdr.hopsum.generation : exact @name("generation"); }
        actions = { job; leaf_job; @defaultonly unknown_generation; }
        const default_action = unknown_generation;
        size = MAX_JOBS;
    }

    @brief("A worker, or with worker_bit 0 an observer, and where its packets come from.")
    action admit(bitmap_t worker_bit, port_t port, ipv4_t address, bit<16> udp_port) {
        meta.worker_bit = worker_bit;
        meta.packet_contributors = worker_bit;
        meta.worker_port = port;
        meta.worker_address = address;
        meta.worker_udp_port = udp_port;
    }
    action unknown_worker() { meta.drop_reason = DROP_UNKNOWN_WORKER; }

    @brief("Ranks of a generation; any other is dropped as UNKNOWN_WORKER.")
    table workers {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.worker     : exact @name("worker");
        }
        actions = { admit; @defaultonly unknown_worker; }
        const default_action = unknown_worker;
        size = MAX_JOBS * ((bit<16>) MAX_WORKERS + 1);
    }

    apply {
        if (standard_metadata.parser_error != error.NoError) {
            meta.drop_reason = DROP_TRUNCATED;
        } else if (standard_metadata.checksum_error == 1) {
            meta.drop_reason = DROP_BAD_CHECKSUM;
        } else if (hdr.hopsum.version != WIRE_VERSION) {
            meta.drop_reason = DROP_BAD_VERSION;
        } else if (hdr.hopsum.kind != KIND_UPDATE && hdr.hopsum.kind != KIND_PROBE && meta.is_tree_peer == 0) {
            meta.drop_reason = DROP_BAD_KIND;
        } else if ((hdr.hopsum.flags & ~FLAG_FLUSH) != 0
                   || (hdr.hopsum.flags != 0 && hdr.hopsum.kind != KIND_UPDATE && hdr.hopsum.kind != KIND_PARTIAL)) {
            meta.drop_reason = DROP_BAD_FLAGS;
        } else if ((hdr.hopsum.op == 0) != (hdr.hopsum.kind == KIND_PROBE)
                   || hdr.hopsum.op == RETIRED_OP || hdr.hopsum.op > OP_LOOKUP_ADD_LOOKUP2
                   || (meta.is_tree_peer == 1 && hdr.hopsum.op > OP_LOOKUP_ADD_LOOKUP4)) {
            meta.drop_reason = DROP_BAD_OP;
        } else if (hdr.ipv4.total_length != hdr.udp.length + 20 || hdr.udp.length != hdr.hopsum.length + 40
                   || (hdr.hopsum.length != 0 && (hdr.hopsum.kind == KIND_PROBE || hdr.hopsum.kind == KIND_STALE))
                   || (meta.is_tree_peer == 1 && hdr.hopsum.kind != KIND_STALE
                       && !hdr.lanes.isValid() && !hdr.codes8.isValid())
                   || (hdr.hopsum.kind == KIND_UPDATE
                       && !hdr.codes8.isValid() && !hdr.codes16.isValid() && !hdr.codes3.isValid()
                       && !hdr.codes2.isValid() && !hdr.lanes.isValid())) {
            meta.drop_reason = DROP_BAD_LENGTH;
        } else if (jobs.apply().hit) {
            if (meta.is_tree_peer == 0) {
                workers.apply();
            }
            if (meta.drop_reason == DROP_NONE) {
                if (standard_metadata.ingress_port != meta.worker_port) {
                    meta.drop_reason = DROP_WRONG_PORT;
                } else if (hdr.ipv4.src != meta.worker_address || hdr.udp.src_port != meta.worker_udp_port) {
                    meta.drop_reason = DROP_WRONG_SOURCE;
                } else if (hdr.hopsum.slot >= meta.slots) {
                    meta.drop_reason = DROP_BAD_SLOT;
                } else if (hdr.hopsum.round == 0) {
                    meta.drop_reason = DROP_BAD_ROUND;
                } else if (hdr.hopsum.kind == KIND_UPDATE || hdr.hopsum.kind == KIND_PARTIAL) {
                    if (meta.worker_bit == 0) {
                        meta.drop_reason = DROP_OBSERVER;
                    } else if (hdr.hopsum.op == OP_MAX32
                               && ((hdr.lanes.v0 | hdr.lanes.v1 | hdr.lanes.v2 | hdr.lanes.v3) & HIGH32) != 0) {
                        meta.drop_reason = DROP_BAD_VALUE;
                    } else if (hdr.hopsum.kind == KIND_PARTIAL
                               && (meta.packet_contributors == 0 || (meta.packet_contributors & ~meta.members) != 0)) {
                        meta.drop_reason = DROP_BAD_CONTRIBUTORS;
                    }
                }
            }
        }
    }
}
