# SPDX-License-Identifier: Apache-2.0
"""`hopsum demo`: worker processes, a switch, a controller, and numpy to judge them.

    command   arguments, the run from start to end
    stage     a switch and the seats of its workers, per target
    worker    what a worker process does
    vectors   what is summed, and what numpy says
    report    the table and the JSON
"""
