// SPDX-License-Identifier: Apache-2.0
// Part of lanes256.p4.
#define LO 0
#include LANE_FILE
#undef LO
#define LO 1
#include LANE_FILE
#undef LO
#define LO 2
#include LANE_FILE
#undef LO
#define LO 3
#include LANE_FILE
#undef LO
#define LO 4
#include LANE_FILE
#undef LO
#define LO 5
#include LANE_FILE
#undef LO
#define LO 6
#include LANE_FILE
#undef LO
#define LO 7
#include LANE_FILE
#undef LO
#define LO 8
#include LANE_FILE
#undef LO
#define LO 9
#include LANE_FILE
#undef LO
#define LO a
#include LANE_FILE
#undef LO
#define LO b
#include LANE_FILE
#undef LO
#define LO c
#include LANE_FILE
#undef LO
#define LO d
#include LANE_FILE
#undef LO
#define LO e
#include LANE_FILE
#undef LO
#define LO f
#include LANE_FILE
#undef LO
