// SPDX-License-Identifier: Apache-2.0
// The differences between the two chips. The build gives __TARGET_TOFINO__ and CODES_HALF.
//   LOOP_PORTS   the internal ports that packets can loop through. Each is one channel of the whole port: 100 Gbit/s on
//                Tofino 1. On Tofino 2 100 Gbit/s for port 6 and 400 for the others.
//   LOOP         the loop port of every slot, until the control plane spreads slots over more (table `loop`)

#ifndef HOPSUM_TARGET_P4
#define HOPSUM_TARGET_P4

#include <core.p4>
#include "../shared/types.p4"
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
typedef bit<7> queue_t;
const port_t LOOP = 6;
#define LOOP_PORTS(X) X(6) X(128) X(256) X(384)
#else
#include <tna.p4>
typedef bit<5> queue_t;
const port_t LOOP = 68;
#define LOOP_PORTS(X) X(68) X(192) X(196) X(324) X(448) X(452)
#endif

#ifndef CODES_HALF
#define CODES_HALF 32                   // codes that one half of a pass (ingress or egress) takes
#endif
#ifndef COPIES
#define COPIES 4096                     // slot copies: 2 * MAX_SLOTS
#endif
#ifndef TABLES
#define TABLES 4                        // lookup tables that are there at the same time
#endif
// A packet of 1024 bytes of lanes (or their codes) takes PASSES consuming passes; a register has a row for each.
#define PASSES (512 / CODES_HALF)
#define ROWS (COPIES * PASSES)

#endif
