// SPDX-License-Identifier: Apache-2.0
// What differs between the two chips; everything else is the same program. The build gives __TARGET_TOFINO__ and
// CODES_HALF.

#ifndef HOPSUM_TARGET_P4
#define HOPSUM_TARGET_P4

#include <core.p4>
#include "../shared/types.p4"
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
const port_t RECIRCULATE = 6;           // the recirculation port of pipe 0
#else
#include <tna.p4>
const port_t RECIRCULATE = 68;
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
