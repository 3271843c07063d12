# SPDX-License-Identifier: Apache-2.0
"""PTF tests on a switch that is started for them: any compiled v1model program, or our own.

ptf_command   ptf's command, its arguments, its results
ptf_switches  the embedded switch with AF_UNIX ports, and bmv2 with veth pairs
program_test  ProgramTest, the base class of a test of any program
reported      the base class that tells the runner how a test ended
case_results  outcomes, as a file and as a table
unix_ports    ptf's platform for AF_UNIX ports
"""
