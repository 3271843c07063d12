// SPDX-License-Identifier: Apache-2.0
    register<bit<8>>(NAIVE_COPIES) NAME(values);
    bit<8> NAME(held);
