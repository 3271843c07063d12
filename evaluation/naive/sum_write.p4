// SPDX-License-Identifier: Apache-2.0
            NAME(values).write(meta.slot_index, hdr.lanes.NAME(l));
