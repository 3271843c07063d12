# SPDX-License-Identifier: Apache-2.0
"""Everything that any process of hopsum needs, whatever it has to do with aggregation: nothing here knows of packets.

errors, internal_error      the base of all errors; the line for an exception that no code expected
process_end, owned_folder   the end of a process, and temporary folders that are removed though their owners are killed
service_manager, log_writer the messages to systemd; log lines, which a slow reader does not hold up
private_files, token_files  secrets that nobody else may read
tls_server, tls_client      TLS of a gRPC server, and of its clients
quiet_grpc, p4runtime       gRPC and P4Runtime's bindings, on whatever protobuf is installed
web_server                  the HTTP server of pages and metrics
interfaces                  interfaces, routes and sockets of the operating system
spare_arrays                memory of earlier calls for the next ones
records, kernel_structs     memory that Python and machine code read by the names of its fields; Linux's structs
record_kernels              such memory, as kernels of numba have it
linux                       the reason why other systems are refused
units, arguments            numbers, rates, times and files as people write them; figures as they read them
own_random                  chance that no script's seed makes alike on all ranks
shown                       text of strangers, made safe for a terminal

Importing the package needs the standard library only.
"""

__version__ = "0.1.0"
"""The version of all of hopsum's packages. The build reads it here."""
