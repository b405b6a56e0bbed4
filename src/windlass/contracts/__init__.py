"""One room for each contract: rules, tables, wire, server, worker and conformance kit."""
