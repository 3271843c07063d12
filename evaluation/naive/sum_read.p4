// SPDX-License-Identifier: Apache-2.0
            NAME(values).read(hdr.lanes.NAME(l), meta.slot_index);
