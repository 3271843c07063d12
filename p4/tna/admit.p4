// SPDX-License-Identifier: Apache-2.0
// Admission: is this packet well formed, and from a worker of a live generation? The first check that fails names the
// drop reason; nothing behind Admit sees such a packet. `validate_header`, `jobs`, `workers` and Lookup's table collect;
// `admission` judges. A packet is admitted twice. At its front port, so that nothing else enters the loop. And on its
// return from the loop port, where it is decided: its job may have ended meanwhile. Only the generation ties a packet to
// a job: a generation that is not in `jobs` does not exist (rule S1). An observer is an entry of `workers` without a bit:
// it may PROBE and nothing else.

// Lengths of a well-formed packet: hopsum's, IPv4's and UDP's.
#define LENGTHS(payload_bytes) \
    payload_bytes, payload_bytes + IPV4_OVERHEAD_BYTES, payload_bytes + UDP_OVERHEAD_BYTES

control Admit(inout headers_t hdr, inout metadata_t meta) {
    action reject_header(bit<8> reason) { meta.header_reason = reason; }
    action update(bit<8> step, bit<8> combine) {
        meta.requested_access = ACCESS_UPDATE;
        meta.combine = combine;
        meta.step = step;
    }
    action probe() {
        meta.requested_access = ACCESS_PROBE;
        meta.step = STEP_REPLY;
    }

    @brief("Form of a packet of the service: constant entries.")
    table validate_header {
        key = {
            hdr.hopsum.version    : ternary @name("version");
            hdr.hopsum.kind       : ternary @name("kind");
            hdr.hopsum.flags      : ternary @name("flags");
            hdr.hopsum.op         : ternary @name("op");
            hdr.hopsum.length     : ternary @name("length");
            hdr.ipv4.total_length : ternary @name("total_length");
            hdr.udp.length        : ternary @name("udp_length");
        }
        actions = { reject_header; update; probe; }
        const default_action = reject_header(DROP_BAD_VERSION);
        size = 16;
        const entries = {
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_LOOKUP_ADD8, LENGTHS(CODES8_BYTES)) : update(STEP_CODES, OPERATION_ADD);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_ADD8, LENGTHS(LANES_BYTES))         : update(STEP_LANES, OPERATION_ADD);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_ADD32, LENGTHS(LANES_BYTES))        : update(STEP_LANES, OPERATION_ADD);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_OR, LENGTHS(LANES_BYTES))           : update(STEP_LANES, OPERATION_OR);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_MAX32, LENGTHS(LANES_BYTES))        : update(STEP_LANES, OPERATION_MAX);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_LOOKUP_ADD8, _, _, _)               : reject_header(DROP_BAD_LENGTH);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_ADD8, _, _, _)                      : reject_header(DROP_BAD_LENGTH);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_ADD32, _, _, _)                     : reject_header(DROP_BAD_LENGTH);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, OP_OR &&& 0xfe, _, _, _)               : reject_header(DROP_BAD_LENGTH);
            (WIRE_VERSION, KIND_UPDATE, 0 &&& 0xfe, _, _, _, _)                            : reject_header(DROP_BAD_OP);
            (WIRE_VERSION, KIND_PROBE, 0, 0, LENGTHS(16w0))                                : probe();
            (WIRE_VERSION, KIND_PROBE, 0, 0, _, _, _)                                      : reject_header(DROP_BAD_LENGTH);
            (WIRE_VERSION, KIND_PROBE, 0, _, _, _, _)                                      : reject_header(DROP_BAD_OP);
            (WIRE_VERSION, KIND_PROBE, _, _, _, _, _)                                      : reject_header(DROP_BAD_FLAGS);
            (WIRE_VERSION, KIND_UPDATE, _, _, _, _, _)                                     : reject_header(DROP_BAD_FLAGS);
            (WIRE_VERSION, _, _, _, _, _, _)                                               : reject_header(DROP_BAD_KIND);
        }
    }

    @brief("A job: registers, quorum, multicast group.")
    action job(bit<16> job_index, bit<16> slot_base, bit<16> slots, bit<8> quorum, bit<8> min_quorum, group_t group) {
        meta.has_job = 1;
        hdr.pass.cell[9:4] = job_index[5:0];
        hdr.pass.row = slot_base + hdr.hopsum.slot;
        meta.slots_left = slots - hdr.hopsum.slot;
        meta.quorum = (int<8>) quorum;
        meta.min_quorum = (int<8>) min_quorum;
        hdr.pass.group = group;
    }

    @brief("Live generations; any other is dropped as UNKNOWN_GENERATION.")
    table jobs {
        key = { hdr.hopsum.generation : exact @name("generation"); }
        actions = { job; @defaultonly NoAction; }
        const default_action = NoAction;
        size = (bit<32>) MAX_JOBS;
    }

    @brief("A worker, or with worker_bit 0 an observer, and where its packets come from.")
    action admit(bitmap_t worker_bit, port_t port, ipv4_t address, bit<16> udp_port) {
        meta.has_worker = 1;
        meta.bit_low = worker_bit[31:0];
        meta.bit_high = worker_bit[63:32];
        meta.port_difference = (bit<16>) (hdr.pass.port ^ port);
        meta.address_difference = hdr.ipv4.src ^ address;
        meta.udp_difference = hdr.udp.src_port ^ udp_port;
    }

    @brief("Ranks of a generation; any other is dropped as UNKNOWN_WORKER.")
    table workers {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.worker     : exact @name("worker");
        }
        actions = { admit; @defaultonly NoAction; }
        const default_action = NoAction;
        size = (bit<32>) MAX_JOBS * ((bit<32>) MAX_WORKERS + 1);    // and an observer
    }

    action drop_with_reason(bit<8> reason) { meta.drop_reason = reason; }
    action drop_with_header_reason() { meta.drop_reason = meta.header_reason; }
    action admitted_at_front() { hdr.pass.step = STEP_ADMIT; }
    // From here on lower headers are of no use: replies get new ones in egress.
    action admitted() {
        meta.access = meta.requested_access;
        hdr.pass.step = meta.step;
        hdr.pass.passes_left = PASSES;
        hdr.pass.row[11:11] = hdr.hopsum.round[0:0];
        hdr.ethernet.setInvalid();
        hdr.ipv4.setInvalid();
        hdr.udp.setInvalid();
    }

    @brief("The first check that fails, or none: constant entries.")
    table admission {
        key = {
            meta.checksum_error       : ternary @name("checksum_error");
            meta.header_reason          : ternary @name("header_reason");
            meta.has_job              : ternary @name("has_job");
            meta.has_worker           : ternary @name("has_worker");
            meta.port_difference      : ternary @name("port_difference");
            meta.address_difference   : ternary @name("address_difference");
            meta.udp_difference       : ternary @name("udp_difference");
            hdr.hopsum.slot           : ternary @name("slot");
            meta.slots_left                 : ternary @name("slots_left");
            hdr.hopsum.round          : ternary @name("round");
            meta.requested_access                 : ternary @name("requested_access");
            meta.bit_low              : ternary @name("bit_low");
            meta.bit_high             : ternary @name("bit_high");
            meta.step                 : ternary @name("step");
            meta.has_table            : ternary @name("has_table");
            meta.from_loop            : ternary @name("from_loop");
        }
        actions = { drop_with_reason; admitted_at_front; admitted; @defaultonly drop_with_header_reason; }
        const default_action = drop_with_header_reason;
        size = 16;
#define OF_JOB _, 0, 1, 1
#define OF_WORKER OF_JOB, 0, 0, 0
#define OF_SLOT OF_WORKER, 0 &&& 0xf800, 0 &&& 0x8000
        const entries = {
            (true, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _)         : drop_with_reason(DROP_BAD_CHECKSUM);
            (_, 0, 0, _, _, _, _, _, _, _, _, _, _, _, _, _)            : drop_with_reason(DROP_UNKNOWN_GENERATION);
            (_, 0, _, 0, _, _, _, _, _, _, _, _, _, _, _, _)            : drop_with_reason(DROP_UNKNOWN_WORKER);
            (OF_WORKER, _, 0, _, _, _, _, _, _, _)                      : drop_with_reason(DROP_BAD_SLOT);
            (OF_SLOT, 0, _, _, _, _, _, _)                              : drop_with_reason(DROP_BAD_ROUND);
            (OF_SLOT, _, ACCESS_UPDATE, 0, 0, _, _, _)                  : drop_with_reason(DROP_OBSERVER);
            (OF_SLOT, _, ACCESS_UPDATE, _, _, STEP_CODES, 0, _)         : drop_with_reason(DROP_NO_TABLE);
            (OF_SLOT, _, _, _, _, _, _, 0)                              : admitted_at_front();
            (OF_SLOT, _, _, _, _, _, _, _)                              : admitted();
            (OF_WORKER, _, _, _, _, _, _, _, _, _)                      : drop_with_reason(DROP_BAD_SLOT);
            (OF_JOB, 0, _, _, _, _, _, _, _, _, _, _, _)                : drop_with_reason(DROP_WRONG_SOURCE);
            (OF_JOB, _, _, _, _, _, _, _, _, _, _, _, _)                : drop_with_reason(DROP_WRONG_PORT);
        }
    }

    apply {
        validate_header.apply();
        jobs.apply();
        workers.apply();
        if (meta.is_local) {
            admission.apply();
        }
    }
}
