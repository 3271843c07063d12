# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller` and `hopsum controller backup`: arguments, log and signals around the controller's service."""
