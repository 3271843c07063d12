// SPDX-License-Identifier: Apache-2.0
            NAME(values).write(meta.copy, hdr.lanes.NAME(l));
