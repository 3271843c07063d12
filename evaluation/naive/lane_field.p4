// SPDX-License-Identifier: Apache-2.0
    bit<8> NAME(l);
