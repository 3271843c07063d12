// SPDX-License-Identifier: Apache-2.0
// Part of lanes.p4.
#define MID 0
#include "lanes16.p4"
#undef MID
#define MID 1
#include "lanes16.p4"
#undef MID
#define MID 2
#include "lanes16.p4"
#undef MID
#define MID 3
#include "lanes16.p4"
#undef MID
#define MID 4
#include "lanes16.p4"
#undef MID
#define MID 5
#include "lanes16.p4"
#undef MID
#define MID 6
#include "lanes16.p4"
#undef MID
#define MID 7
#include "lanes16.p4"
#undef MID
#define MID 8
#include "lanes16.p4"
#undef MID
#define MID 9
#include "lanes16.p4"
#undef MID
#define MID a
#include "lanes16.p4"
#undef MID
#define MID b
#include "lanes16.p4"
#undef MID
#define MID c
#include "lanes16.p4"
#undef MID
#define MID d
#include "lanes16.p4"
#undef MID
#define MID e
#include "lanes16.p4"
#undef MID
#define MID f
#include "lanes16.p4"
#undef MID
