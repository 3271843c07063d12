// SPDX-License-Identifier: Apache-2.0
// Includes LANE_FILE once for every lane, 000 to 3ff: NAME(x) is there x with the lane's number. By inclusion and not by
// one macro, because p4c puts the whole line of every statement into its JSON.
#define HI 0
#include "lanes256.p4"
#undef HI
#define HI 1
#include "lanes256.p4"
#undef HI
#define HI 2
#include "lanes256.p4"
#undef HI
#define HI 3
#include "lanes256.p4"
#undef HI
#undef LANE_FILE
