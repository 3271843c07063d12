// SPDX-License-Identifier: Apache-2.0
// Payload headers, the header and metadata structs of the Tofino program. A payload is taken half a pass at a time.

#ifndef HOPSUM_PAYLOAD_P4
#define HOPSUM_PAYLOAD_P4

#include "../shared/constants.p4"
#include "../shared/headers.p4"
#include "target.p4"
#include "unroll.p4"

#define LANES_FIELD(nibble, n, ...) bit<32> w##n;

// Where the payload is codes, a word holds the four bytes that its lanes are looked up from, until they are.
header lanes_h { LANES(LANES_FIELD) }

// In front of a frame wherever the frame is inside the switch, never on the wire. The deciding pass writes it, and all
// later passes obey it.
header pass_h {
    bit<8>  step;               // STEP_*
    bit<8>  operation;          // OPERATION_*
    bit<8>  table_id;           // lookup table of the codes, or TABLE_LANES, TABLE_NOTHING
    bit<8>  reply;              // REPLY_*
    bit<8>  passes_left;        // of consuming or harvesting, this one included
    bit<16> row;                // pass * COPIES + copy; the copy in the deciding pass and in the last
    bit<16> cell;               // of job_events: job_index * JOB_EVENTS + event
    group_t group;              // multicast group of the job
    bit<7>  padding;
    port_t  port;               // the front port that the packet came from
}

// How a frame goes on.
const bit<8> STEP_FORWARD = 0;          // plain frame
const bit<8> STEP_FLOOD   = 1;          // plain frame to all ports but its own
const bit<8> STEP_CODES   = 2;          // a consuming pass: codes are taken away
const bit<8> STEP_LANES   = 3;          // a consuming pass: lanes are taken away
const bit<8> STEP_HARVEST = 4;          // lanes are put in front
const bit<8> STEP_LAST    = 5;          // all lanes are there: is the round still in its copy?
const bit<8> STEP_REPLY   = 6;          // leaves the switch
const bit<8> STEP_ADMIT   = 7;          // the whole frame: admitted, and not decided yet

const bit<8> OPERATION_WRITE = 1;       // values := this packet's lanes
const bit<8> OPERATION_ADD   = 2;       // values := values + lanes
const bit<8> OPERATION_READ  = 3;       // values stay; they are added to lanes of 0
const bit<8> OPERATION_OR    = 4;
const bit<8> OPERATION_MAX   = 5;

const bit<8> TABLE_LANES   = 0;         // no lookup: the payload is lanes
const bit<8> TABLE_NOTHING = 255;       // lanes of 0

const bit<8> REPLY_NONE   = 0;          // nothing leaves the switch
const bit<8> REPLY_RESULT = 1;          // RESULT to all children of the job
const bit<8> REPLY_ANSWER = 2;          // RESULT to the sender alone
const bit<8> REPLY_STALE  = 3;          // STALE to the sender alone
const bit<8> REPLY_STATE  = 4;          // STATE to the sender alone

// What a packet wants of the slot.
const bit<8> ACCESS_NONE   = 0;
const bit<8> ACCESS_UPDATE = 1;
const bit<8> ACCESS_PROBE  = 2;
const bit<8> ACCESS_LAST   = 3;

struct headers_t {
    pass_h     pass;
    ethernet_h ethernet;
    ipv4_h     ipv4;
    udp_h      udp;
    hopsum_h   hopsum;
    lanes_h    lanes;
}

struct metadata_t {
    bit<8>   drop_reason;               // DROP_*
    bit<8>   header_reason;               // DROP_* of its form
    bit<8>   access;                    // ACCESS_*
    bit<8>   step;                      // STEP_*, if it is admitted
    bit<8>   requested_access;                     // ACCESS_* of a well-formed packet
    bit<8>   combine;                   // OPERATION_* of the op
    bool     checksum_error;
    bit<1>   from_loop;                 // 1: from a loop port
    bool     is_local;                  // for the aggregation service
    bit<1>   has_job;
    bit<1>   has_worker;
    bit<1>   has_table;
    // from the tables of Admit
    bit<16>  slots_left;                     // slots - slot: positive in the job's range
    int<8>   quorum;
    int<8>   min_quorum;
    bit<32>  bit_low;                   // the sender's bit of the bitmaps, 0 of observers
    bit<32>  bit_high;
    bit<16>  port_difference;           // 0 where port and source are the worker's
    bit<32>  address_difference;
    bit<16>  udp_difference;
}

struct egress_metadata_t {
    bit<16> port_difference;
}

#endif
