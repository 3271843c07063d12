// SPDX-License-Identifier: Apache-2.0
            NAME(values).read(NAME(held), meta.slot_index);
            hdr.lanes.NAME(l) = hdr.lanes.NAME(l) + NAME(held);
            NAME(values).write(meta.slot_index, hdr.lanes.NAME(l));
