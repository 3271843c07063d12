# SPDX-License-Identifier: Apache-2.0
"""`hopsum top`: switches, jobs, rates and stragglers, as they change."""
