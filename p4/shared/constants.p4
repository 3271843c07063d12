// SPDX-License-Identifier: Apache-2.0
// Numbers of the wire format and of the counters: the only place where they are written down.
// wire/hopsum_wire/_layout.py is generated from this file and headers.p4 (make generate).

#ifndef HOPSUM_CONSTANTS_P4
#define HOPSUM_CONSTANTS_P4

// ---- the packet -------------------------------------------------------------------------------------
const bit<8>  WIRE_VERSION      = 1;        // any other version is dropped and counted
const bit<16> HOPSUM_UDP_PORT   = 24677;    // workers send to this port of the switch's address

// kind
const bit<8>  KIND_UPDATE       = 1;        // worker -> switch: one chunk
const bit<8>  KIND_RESULT       = 2;        // switch -> worker: the sum of a complete round
const bit<8>  KIND_STALE        = 3;        // switch -> worker: the slot has moved on to round `held`
const bit<8>  KIND_PROBE        = 4;        // worker or observer -> switch: what does this slot copy hold?
const bit<8>  KIND_STATE        = 5;        // switch -> asker: answers PROBE
const bit<8>  KIND_PARTIAL      = 6;        // switch -> its parent in a tree: the sum of what is below it

// flags
const bit<8>  FLAG_FLUSH        = 1;        // UPDATE, PARTIAL: complete this round at min_quorum, with this packet in it

// op: what the switch does with the payload
const bit<8>  OP_LOOKUP_ADD8    = 1;        // 1024 4-bit codes up, looked up; 1024 8-bit lanes down
const bit<8>  OP_LOOKUP_ADD16   = 2;        // 512 4-bit codes up, looked up; 512 16-bit lanes down
const bit<8>  OP_ADD8           = 3;        // 1024 8-bit lanes, added modulo 2^8
const bit<8>  OP_ADD16          = 4;        // 512 16-bit lanes, added modulo 2^16
const bit<8>  OP_ADD32          = 5;        // 256 32-bit lanes, added modulo 2^32
const bit<8>  OP_OR             = 6;        // a bitmap of 8192 bits, or-ed
const bit<8>  OP_MAX32          = 7;        // 256 31-bit lanes, unsigned maximum; a set top bit is refused

// payload sizes
const bit<16> CODES8_BYTES      = 512;      // LOOKUP_ADD8: 1024 codes of 4 bits
const bit<16> CODES16_BYTES     = 256;      // LOOKUP_ADD16: 512 codes of 4 bits
const bit<16> LANES_BYTES       = 1024;     // 1024 x 8, 512 x 16 or 256 x 32 bits
// Lane order. Lanes are always in element order. Codes travel in groups of LANE_GROUP_CODES, as words of the
// lane's width. Word j of a group of W words holds, from its highest nibble down, the codes j, j + W, j + 2 W, ...:
// byte j of LOOKUP_ADD8 the codes j and j + 256, 16-bit word j of LOOKUP_ADD16 the codes j, j + 128, j + 256 and
// j + 384. So one shift and one mask turn a group into consecutive lanes.
const bit<16> LANE_GROUP_CODES  = 512;
const bit<16> TABLE_ENTRIES     = 16;       // values of a lookup table, one for each 4-bit code

// state of a slot copy, in `count` of STATE
const bit<16> STATE_EMPTY       = 0;        // nothing of this generation
const bit<16> STATE_COLLECTING  = 1;
const bit<16> STATE_FINAL       = 2;        // complete
const bit<16> STATE_CLOSED      = 3;        // the partial sum is with the parent, which has not answered

// ---- limits of the program --------------------------------------------------------------------------
const bit<8>  MAX_WORKERS       = 64;       // bits of the contributors bitmap
const bit<16> MAX_SLOTS         = 2048;     // slots of the whole switch, shared by all jobs
const bit<16> MAX_JOBS          = 64;

// ---- counter indices --------------------------------------------------------------------------------
// `drops`: why a frame was dropped
const bit<8>  DROP_NONE           = 0;
const bit<8>  DROP_TRUNCATED      = 1;      // the frame ends before its headers or payload do
const bit<8>  DROP_BAD_CHECKSUM   = 2;      // IPv4 header checksum
const bit<8>  DROP_BAD_VERSION    = 3;
const bit<8>  DROP_BAD_KIND       = 4;
const bit<8>  DROP_BAD_FLAGS      = 5;
const bit<8>  DROP_BAD_OP         = 6;
const bit<8>  DROP_BAD_LENGTH     = 7;      // IPv4, UDP and hopsum lengths do not fit each other or the op
const bit<8>  DROP_UNKNOWN_GENERATION = 8;
const bit<8>  DROP_UNKNOWN_WORKER = 9;      // no such rank in this generation
const bit<8>  DROP_WRONG_PORT     = 10;     // right rank, wrong ingress port
const bit<8>  DROP_WRONG_SOURCE   = 11;     // right rank, wrong source address or UDP port
const bit<8>  DROP_BAD_SLOT       = 12;     // not in the job's slot range
const bit<8>  DROP_BAD_ROUND      = 13;     // rounds start at 1
const bit<8>  DROP_BAD_VALUE      = 14;     // MAX32 lane with its top bit set
const bit<8>  DROP_OP_MISMATCH    = 15;     // another op than the round's first packet
const bit<8>  DROP_NO_TABLE       = 16;     // LOOKUP in a job without a lookup table
const bit<8>  DROP_NO_ROUTE       = 17;     // plain forwarding knows no port for the destination
const bit<8>  DROP_OBSERVER       = 18;     // UPDATE from an observer, which may only PROBE
const bit<8>  DROP_SIMULATED      = 19;     // the loss simulator, on the way in (on the way out: counter `lost`)
const bit<8>  DROP_BAD_CONTRIBUTORS = 20;   // PARTIAL of nobody, or of workers that are not below its sender
const bit<8>  DROP_REASONS        = 32;     // size of the counter

// `job_events`: index = job_index * JOB_EVENTS + event
const bit<8>  EVENT_ADDED         = 0;      // a contribution entered a sum
const bit<8>  EVENT_COMPLETED     = 1;      // ... and was the last one: RESULT multicast
const bit<8>  EVENT_DUPLICATE     = 2;      // seen before, round still collecting: nothing to say
const bit<8>  EVENT_ANSWERED      = 3;      // round complete: RESULT to this worker alone
const bit<8>  EVENT_STALE         = 4;      // older round: STALE to this worker alone
const bit<8>  EVENT_FAULT         = 5;      // newer round over a collecting one of the same generation
const bit<8>  EVENT_PROBED        = 6;      // STATE to the asker
const bit<8>  EVENT_CLOSED        = 7;      // a contribution was the last one below a leaf: PARTIAL to the parent
const bit<8>  EVENT_RESENT        = 8;      // closed, and no result yet: PARTIAL to the parent again
const bit<8>  EVENT_TAKEN         = 9;      // RESULT of the parent: to all
const bit<8>  EVENT_KNOWN         = 10;     // RESULT of the parent, of a complete round or an older one: nothing to say
const bit<8>  EVENT_RELAYED       = 11;     // STALE of the parent: to all
const bit<8>  JOB_EVENTS          = 16;     // counters per job

#endif
