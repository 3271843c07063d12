// SPDX-License-Identifier: Apache-2.0
    bit<4> NAME_OF(c, FIRST, MID, LO);
    bit<4> NAME_OF(c, SECOND, MID, LO);
